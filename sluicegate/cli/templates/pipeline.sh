# Ships a release folder by five kinds of calls: draft, files, seal, gates, rollout. It needs bash, curl 7.82 and jq 1.6.
# Exit codes are those of the command line: 1 the release is bad, 2 try again later, 3 refused, 4 a person must look at it.
set -euo pipefail
: "${SLUICEGATE_URL:?is the address of the server}" "${MODEL:?is the name of the model}"
ENVIRONMENT=${ENVIRONMENT:-production} FOLDER=${FOLDER:-.}
API=${SLUICEGATE_URL%/}/api/v1
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT

stop() { echo "$2" >&2; exit "$1"; }
# call METHOD ADDRESS [curl's arguments]: the answer is in $TMP/answer, its status in $STATUS; a refusal ends the job in its own words.
call() {
  local method=$1 address=$2
  shift 2
  STATUS=$(curl -sS --retry 5 --retry-connrefused -X "$method" -H "Authorization: Bearer ${SLUICEGATE_TOKEN:-}" \
    -o "$TMP/answer" -w '%{http_code}' "$@" "$address") || stop 2 "No answer from $address."
  if [ "$STATUS" -ge 400 ]; then
    echo "$method $address: $STATUS" >&2
    jq -r '.detail // ., (.errors[]? | "  \(.field): \(.message) \(.fix)")' "$TMP/answer" >&2 || cat "$TMP/answer" >&2
    case $STATUS in 5?? | 408 | 429) exit 2 ;; *) exit 3 ;; esac
  fi
}
sha256() { sha256sum <"$1" | cut -d' ' -f1; }

# A job that has an identity token of its platform exchanges it; SLUICEGATE_TOKEN is for all others.
if [ -z "${SLUICEGATE_TOKEN:-}" ]; then
  if [ -n "${ACTIONS_ID_TOKEN_REQUEST_URL:-}" ]; then
    SLUICEGATE_ID_TOKEN=$(curl -sSf --retry 5 -H "Authorization: Bearer $ACTIONS_ID_TOKEN_REQUEST_TOKEN" \
      "$ACTIONS_ID_TOKEN_REQUEST_URL&audience=${SLUICEGATE_AUDIENCE:-$SLUICEGATE_URL}" | jq -r .value)
  fi
  : "${SLUICEGATE_ID_TOKEN:?or SLUICEGATE_TOKEN must be set}"
  call POST "$API/tokens:exchange" --json "$(jq -n --arg id_token "$SLUICEGATE_ID_TOKEN" '$ARGS.named')"
  SLUICEGATE_TOKEN=$(jq -r .token "$TMP/answer")
fi

cd "$FOLDER"
# 1. The draft: what is in the folder. A job that is run again finds the draft of the one before, and the files that arrived.
find config.pbtxt artifact tokenizer -type f 2>/dev/null | while read -r path; do
  jq -n --arg path "$path" --arg sha256 "$(sha256 "$path")" --argjson size_bytes "$(wc -c <"$path")" '$ARGS.named'
done | jq -s . >"$TMP/files.json" || true
jq -n --rawfile release_yaml release.yaml --slurpfile files "$TMP/files.json" \
  '{$release_yaml, files: $files[0], resume: true}' >"$TMP/draft.json"
call POST "$API/models/$MODEL/releases" --json "@$TMP/draft.json"
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
    curl -sS --fail-with-body --retry 5 -H @"$TMP/headers" -T "$TMP/part" -o "$TMP/part-answer" \
      "$(jq -r '.parts[0].url' "$TMP/answer")" || stop 2 "Part $number of $path was not taken: $(cat "$TMP/part-answer")"
  done
  call POST "$UPLOAD:complete"
  echo "sent $path"
done

# 3. The seal, once a worker has read every file. From here on the release never changes.
while call GET "$API/releases/$ID" && [ "$(jq '.verifying | length' "$TMP/answer")" != 0 ]; do sleep 1; done
call POST "$API/releases/$ID/seal"
RELEASE=$(jq -r .name "$TMP/answer")
echo "$MODEL/$RELEASE is sealed: $(jq -r .digest "$TMP/answer")"

# 4. The gates. The address that ends in /wait answers 202 while they run.
call POST "$API/models/$MODEL/releases/$RELEASE/gate-runs" --json '{}'
RUN=${SLUICEGATE_URL%/}$(jq -r .url "$TMP/answer")
while call GET "$RUN/wait?timeout_s=50" && [ "$STATUS" = 202 ]; do
  jq -r '[.gates[] | select(.verdict != "") | .gate] | "gates run; judged so far: \(join(", "))"' "$TMP/answer"
done
jq -r '.gates[] | "  \(.gate): \(.verdict). \(.reason)"' "$TMP/answer"
case $(jq -r '.verdict // .state' "$TMP/answer") in
  passed) ;;
  errored) stop 2 "A gate broke, and says nothing of the release. Run the job again." ;;
  *) stop 1 "The gates did not pass: $(jq -r '.reason // ""' "$TMP/answer")" ;;
esac

# 5. The rollout, to its end: Sluicegate moves the traffic by evidence, and takes it back by itself.
call POST "$API/rollouts" --json "$(jq -n --arg model "$MODEL" --arg candidate "$RELEASE" --arg environment "$ENVIRONMENT" '$ARGS.named')"
ROLLOUT=$(jq -r .id "$TMP/answer")
echo "rollout $ROLLOUT: ${SLUICEGATE_URL%/}/rollouts/$ROLLOUT/"
while call GET "$API/rollouts/$ROLLOUT/wait?timeout_s=50" && [ "$STATUS" = 202 ]; do
  jq -r '"  \(.state) \(.weight_bp / 100) %: \(.reason)"' "$TMP/answer"
  [ "$(jq -r .state "$TMP/answer")" != paused ] || stop 4 "The rollout is paused; only a person ends that."
done
jq -r '"\(.state): \(.reason)"' "$TMP/answer"
case $(jq -r .state "$TMP/answer") in promoted) ;; rejected) exit 3 ;; *) exit 1 ;; esac
