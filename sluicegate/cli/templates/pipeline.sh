# Ships a release folder by five kinds of calls: draft, files, seal, gates, rollout. It needs bash, curl 7.82 and jq 1.6.
# Run again after it was lost anywhere, it goes on where it was: each call finds what an earlier run made.
# Exit codes are those of the command line: 1 the release is bad, 2 try again later, 3 refused, 4 a person must look at it.
set -euo pipefail
: "${SLUICEGATE_URL:?is the address of the server}" "${MODEL:?is the name of the model}"
ENVIRONMENT=${ENVIRONMENT:-production} FOLDER=${FOLDER:-.} ROLLOUT=
API=${SLUICEGATE_URL%/}/api/v1
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT

stop() { echo "$2" >&2; exit "$1"; }
# What a failed call means for the job. A rollout that was started goes on, whatever becomes of this job.
lost() {
  if [ -n "$ROLLOUT" ]; then
    echo "It is not known how rollout $ROLLOUT ends; it goes on by itself: ${SLUICEGATE_URL%/}/rollouts/$ROLLOUT/" >&2
    echo "Run the job again, or look there: it finds this rollout." >&2
  fi
  stop "$@"
}
# ask METHOD ADDRESS [curl's arguments]: the answer is in $TMP/answer, its status in $STATUS.
ask() {
  local method=$1 address=$2
  shift 2
  STATUS=$(curl -sS --retry 5 --retry-all-errors --connect-timeout 20 --max-time 120 -X "$method" -H "@$TMP/token" \
    -o "$TMP/answer" -w '%{http_code}' "$@" "$address") || lost 2 "No answer from $address."
}
code() { jq -r '.code? // ""' "$TMP/answer" 2>/dev/null || true; }
# call, as ask: another token is got when this one has expired; what is refused ends the job in its own words.
call() {
  local expired=
  ask "$@"
  if [ "$STATUS" = 401 ] && [ "$(code)" = token_expired ]; then
    cp "$TMP/answer" "$TMP/refusal"
    if sign_in; then
      ask "$@"
    else
      expired=1 STATUS=401
      cp "$TMP/refusal" "$TMP/answer"
    fi
  fi
  [ "$STATUS" -ge 400 ] || return 0
  echo "$1 $2: $STATUS" >&2
  jq -r '.detail // ., (.errors[]? | "  \(.field): \(.message) \(.fix)")' "$TMP/answer" >&2 || cat "$TMP/answer" >&2
  case $STATUS in
    5?? | 408 | 429) lost 2 "Try again later." ;;
    401 | 403 | 404) [ -z "$ROLLOUT" ] || lost 4 "The server lets this job look no longer." ;;
  esac
  if [ -n "$expired" ] && [ -e "$TMP/draft.json" ]; then
    stop 2 "Run the job again to resume. A longer life in its rule, or one more identity token, spares that."
  fi
  case $(code) in
    already_stable) exit 0 ;;
    tried_before) [ "$(jq -r .state "$TMP/answer")" = rejected ] || exit 1 ;;
  esac
  exit 3
}
sha256() { sha256sum <"$1" | cut -d' ' -f1; }

# A job that has an identity token of its platform exchanges it, and another one when the token it got has expired.
# GitHub gives one whenever it is asked. GitLab gives a job as many as its file names: SLUICEGATE_ID_TOKEN, …_2, …_3.
sign_in() {
  [ -z "${SLUICEGATE_TOKEN:-}" ] || return 1
  local id_token name
  for name in SLUICEGATE_ID_TOKEN SLUICEGATE_ID_TOKEN_2 SLUICEGATE_ID_TOKEN_3; do
    if [ -n "${ACTIONS_ID_TOKEN_REQUEST_URL:-}" ]; then
      id_token=$(curl -sSf --retry 5 --max-time 120 -H "Authorization: Bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" \
        "$ACTIONS_ID_TOKEN_REQUEST_URL&audience=${SLUICEGATE_AUDIENCE:-$SLUICEGATE_URL}" | jq -r .value) ||
        lost 2 "GitHub gives no identity token."
    else
      id_token=${!name:-}
    fi
    [ -n "$id_token" ] || continue
    : >"$TMP/token"
    ask POST "$API/tokens:exchange" --json "$(jq -n --arg id_token "$id_token" '$ARGS.named')"
    if [ "$STATUS" = 201 ]; then
      jq -r '"Authorization: Bearer \(.token)"' "$TMP/answer" >"$TMP/token"
      return 0
    fi
    [ "$(code)" = id_token_used ] || return 1
  done
  return 1
}
: >"$TMP/answer"
echo "Authorization: Bearer ${SLUICEGATE_TOKEN:-}" >"$TMP/token"
if [ -z "${SLUICEGATE_TOKEN:-}" ]; then
  : "${ACTIONS_ID_TOKEN_REQUEST_URL:-${SLUICEGATE_ID_TOKEN:?or SLUICEGATE_TOKEN must be set}}"
  sign_in || { jq -r '.detail // .' "$TMP/answer" >&2; case $STATUS in 5?? | 408 | 429) exit 2 ;; *) exit 3 ;; esac }
fi

cd "$FOLDER"
# 1. The draft: what is in the folder. A job that is run again finds the draft of the one before, and the files that arrived.
find config.pbtxt artifact tokenizer -type f 2>/dev/null | while read -r path; do
  jq -n --arg path "$path" --arg sha256 "$(sha256 "$path")" --argjson size_bytes "$(wc -c <"$path")" '$ARGS.named'
done | jq -s . >"$TMP/files.json" || true
jq -n --rawfile release_yaml release.yaml --slurpfile files "$TMP/files.json" \
  '{$release_yaml, files: $files[0], resume: true}' >"$TMP/draft-body.json"
call POST "$API/models/$MODEL/releases" --json "@$TMP/draft-body.json"
cp "$TMP/answer" "$TMP/draft.json"
ID=$(jq -r .id "$TMP/draft.json")

# 2. The files that the server lacks, in parts that go straight to the store.
jq -r '.missing[]' "$TMP/draft.json" | while read -r path; do
  call POST "$API/uploads" --json "$(jq -n --arg release "$ID" --arg path "$path" --arg sha256 "$(sha256 "$path")" \
    --argjson size_bytes "$(wc -c <"$path")" '$ARGS.named')"
  cp "$TMP/answer" "$TMP/upload.json"
  if [ "$(jq -r .exists "$TMP/upload.json")" = true ]; then continue; fi
  UPLOAD=$API/uploads/$(jq -r .upload_id "$TMP/upload.json")
  jq -r '.missing[]' "$TMP/upload.json" | while read -r number; do
    dd if="$path" of="$TMP/part" bs="$(jq .part_size "$TMP/upload.json")" skip=$((number - 1)) count=1 status=none
    call POST "$UPLOAD/parts:sign" --json "{\"numbers\": [$number], \"sha256\": [\"$(sha256 "$TMP/part")\"]}"
    jq -r '.parts[0].headers | to_entries[] | "\(.key): \(.value)"' "$TMP/answer" >"$TMP/headers"
    curl -sS --fail-with-body --retry 5 --retry-all-errors --connect-timeout 20 --speed-limit 1 --speed-time 120 \
      -H @"$TMP/headers" -T "$TMP/part" -o "$TMP/part-answer" "$(jq -r '.parts[0].url' "$TMP/answer")" ||
      stop 2 "Part $number of $path was not taken: $(cat "$TMP/part-answer")"
  done
  call POST "$UPLOAD:complete"
  echo "sent $path"
done

# 3. The seal, once a worker has read every file. From here on the release never changes.
while call GET "$API/releases/$ID" && [ "$(jq '.verifying | length' "$TMP/answer")" != 0 ]; do sleep 1; done
call POST "$API/releases/$ID/seal"
RELEASE=$(jq -r .name "$TMP/answer")
echo "$MODEL/$RELEASE is sealed: $(jq -r .digest "$TMP/answer")"

# 4. The gates. A run that is under way is found, and one that passed and still holds. The address that ends in /wait answers
# 202 while they run, also to a token that has expired since it asked for them.
call POST "$API/models/$MODEL/releases/$RELEASE/gate-runs" --json '{"unless_passed": true}'
RUN=${SLUICEGATE_URL%/}$(jq -r .url "$TMP/answer")
while call GET "$RUN/wait?timeout_s=50" --retry 8 && [ "$STATUS" = 202 ]; do
  jq -r '[.gates[] | select(.verdict != "") | .gate] | "gates run; judged so far: \(join(", "))"' "$TMP/answer"
done
jq -r '.gates[] | "  \(.gate): \(.verdict). \(.reason)"' "$TMP/answer"
case $(jq -r '.verdict // .state' "$TMP/answer") in
  passed) ;;
  errored) stop 2 "A gate broke, and says nothing of the release. Run the job again." ;;
  *) stop 1 "The gates did not pass: $(jq -r '.reason // ""' "$TMP/answer")" ;;
esac

# 5. The rollout, to its end: Sluicegate moves the traffic by evidence, and takes it back by itself. An active one of this
# release is found. A release that was taken back here is not rolled out again: the job ends as that rollout did.
call POST "$API/rollouts" --json "$(jq -n --arg model "$MODEL" --arg candidate "$RELEASE" --arg environment "$ENVIRONMENT" '$ARGS.named')"
ROLLOUT=$(jq -r .id "$TMP/answer")
echo "rollout $ROLLOUT: ${SLUICEGATE_URL%/}/rollouts/$ROLLOUT/"
while call GET "$API/rollouts/$ROLLOUT/wait?timeout_s=50" --retry 8 && [ "$STATUS" = 202 ]; do
  jq -r '"  \(.state) \(.weight_bp / 100) %: \(.reason)"' "$TMP/answer"
  [ "$(jq -r .state "$TMP/answer")" != paused ] || stop 4 "The rollout is paused; only a person ends that."
done
jq -r '"\(.state): \(.reason)"' "$TMP/answer"
case $(jq -r .state "$TMP/answer") in promoted) ;; rejected) exit 3 ;; *) exit 1 ;; esac
