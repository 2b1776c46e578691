"""What servers say that is not the release's own failure: a caller's mistake, a full queue. Told apart in the gateway.

Triton answers 500 and INTERNAL to much that its callers get wrong. Left so, anybody who sends `{}` raises the error rate of
whatever release answers it, and has each such request tried on stable as well.

    Triton says                                              the caller gets        tried again, counted as a failure
    500, its own words on JSON, shape, data, parameters      400                    no
    501, compression or correlation id                       400                    no
    INTERNAL, UNIMPLEMENTED: the same over gRPC              INVALID_ARGUMENT 3     no
    404, NOT_FOUND: no such shared memory                    400, 3                 no
    503, UNAVAILABLE: its queue is full                      429, 8                 a candidate's, of stable; it counts as shed
    400 to `generate` where the model failed                 500                    yes
    400, INVALID_ARGUMENT: an ONNX graph failed as it ran    500, INTERNAL 13       yes
    anything else                                            as it is               as it is

Source: every row tried with Triton 2.51; `tests/real/test_mistakes.py` holds the requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from registry.core.kinds import KINDS
from registry.core.kinds.words import Words
from serving.traffic.control_plane import event_streams
from serving.traffic.control_plane.clusters import NAMESPACE, SHED

_TYPES = "type.googleapis.com/"
#: The name of the filter, under which a virtual host tells it how long an attempt may take.
FILTER = "answers"
#: How long, in bytes, an answer may be that is read. A traceback of the model's own is the longest that matters.
LONGEST = 16 * 1024
#: On a request whose body is awaited (`AWAITED`); then the time in ms at which it had come whole.
BODY_HEADER, AWAITED = "x-sluicegate-body", "awaited"
#: On a request that stable answers because the candidate had no room for it.
ROOM_HEADER = "x-sluicegate-room"
#: On a second attempt if the first was late. Envoy's router writes it; the listener removes a caller's.
LATE_HEADER = "x-envoy-is-timeout-retry"
#: On what a server's full queue refused: the same header by which a tenant's quota says so.
FULL_HEADER, FULL_VALUE = "x-sluicegate-shed", "server queue"
#: Route metadata for the filter (`serving.traffic.control_plane.overflow`).
HANDS_ON = "hands_on"


def _words(words: Words) -> str:
    """A server kind's words as a table of the script. They are compared from their first letter, since servers quote what callers sent
    further on."""

    def listed(texts: Iterable[str]) -> str:
        return "{ " + ", ".join(map(json.dumps, texts)) + " }"

    by_status = {of: [text for status, text in words.grpc_mistakes if status == of] for of, _ in words.grpc_mistakes}
    mistakes = ", ".join(f'["{status}"] = {listed(texts)}' for status, texts in by_status.items())
    tables = {
        "opens": listed(words.opens),
        "mistakes": listed(words.mistakes),
        "no_memory": listed(words.no_memory),
        "failures": listed(words.failures),
        "ran": listed([words.ran] if words.ran else []),
        "full": json.dumps(words.full),
        "grpc_mistakes": f"{{ {mistakes} }}",
    }
    return f"{{ {', '.join(f'{name} = {text}' for name, text in tables.items())} }}"


def _every_kind() -> str:
    return ", ".join(f"[{json.dumps(name)}] = {_words(kind.words)}" for name, kind in KINDS.items())


ANSWERS_LUA = f"""
local LONGEST = {LONGEST}
-- By server kind. ONNX Runtime calls it an invalid argument, too (`ran`), when a node of a graph that began to run finds an index
-- beyond its table. Whether the caller's data or the release is to blame is seen where stable answers the same.
local WORDS = {{ {_every_kind()} }}
-- Of a version that the server does not have, in Triton's words; of one that is no number it has no words but these.
local NO_PATH, NO_NUMBER = "Not Found", "failed to get model version from specified version string"
local VERSIONS = "; a version chooses no release here: leave it out, and the gateway chooses the release"

local function begins(text, starts)
  for _, start in ipairs(starts) do
    if text:sub(1, #start) == start then return true end
  end
  return false
end

local function is_full(said, words)
  return words.full ~= "" and said:find(words.full, 1, true)
end

local function is_version(said)
  local is_unknown = begins(said, {{"Request for unknown model"}}) and said:find("' version ", 1, true)
  return is_unknown or said == NO_PATH or begins(said, {{NO_NUMBER}})
end

local function grpc(head, status, words)
  local said = head:get("grpc-message") or ""
  if (status == "3" or status == "5") and is_version(said) then head:replace("grpc-message", said .. VERSIONS) end
  if begins(said, words.grpc_mistakes[status] or {{}}) then return head:replace("grpc-status", "3") end
  if status == "3" and begins(said, words.ran) then head:replace("grpc-status", "13") end
  if status == "14" and is_full(said, words) then
    head:replace("grpc-status", "8")
    return true
  end
end

local READ = {{["400"] = true, ["404"] = true, ["500"] = true, ["501"] = true, ["503"] = true}}

local function meant(status, said, is_front, words)
  if status == "503" then return is_full(said, words) and "429" end
  if status == "404" then return begins(said, words.no_memory) and "400" end
  if status == "400" then return begins(said, words.failures) and "500" end
  return is_front and begins(said, words.mistakes) and "400"
end

-- The message of an error, cut at the beginning of the body; nil if the body is none.
local function message_of(text, words)
  for _, start in ipairs(words.opens) do
    if text:sub(1, #start) == start then return text:sub(#start + 1) end
  end
end

-- The words of the model's server kind; nil where the virtual host states none.
local function words_of(handle)
  return WORDS[handle:virtualHost():metadata():get("kind") or ""]
end

-- A number that the virtual host states; nil where it states none, for which `get` returns nothing, and not nil.
local function stated(handle, name)
  local value = handle:virtualHost():metadata():get(name)
  return value and tonumber(value)
end

-- Hands a full queue's answer on to stable: the candidate's at a first attempt, if it had room and
-- the route allows a second one.
local function hand_on(handle)
  local route, asked = handle:metadata(), handle:requestHeaders()
  if route:get("{HANDS_ON}") ~= "yes" or asked:get("{ROOM_HEADER}") then return end
  if asked:get("x-envoy-attempt-count") ~= "1" then return end
  handle:streamInfo():dynamicMetadata():set("{NAMESPACE}", "{SHED}", "server")
  handle:headers():replace("{FULL_HEADER}", "{FULL_VALUE}")
end

-- Whether another attempt may be under way beside this one. Envoy 1.40 ends with a segmentation fault when a filter waits for the
-- body of the answer that it gives up then, so that answer's words are not looked at; nor those that come in the last tenth of the
-- time of one attempt, whose body may come after it.
local function is_late(handle)
  local asked, most = handle:requestHeaders(), stated(handle, "attempt_timeout_ms")
  local began = tonumber(asked:get("{BODY_HEADER}") or "")
  return asked:get("{LATE_HEADER}") == "true" or not most or not began or handle:timestamp() - began >= 0.9 * most
end

function envoy_on_response(handle)
  local head = handle:headers()
  local status = head:get("grpc-status")
  if status and begins(head:get("content-type") or "", {{"application/grpc"}}) then  -- over HTTP it says nothing
    local words = status ~= "0" and words_of(handle)
    if words and grpc(head, status, words) then hand_on(handle) end
    return
  end
  status = head:get(":status")
  local words = READ[status] and words_of(handle)
  if not words then return end
  local size = tonumber(head:get("content-length") or "")
  -- `generate` tells no length when the model failed
  if (size or 0) > LONGEST or (not size and status ~= "400") then return end
  if is_late(handle) then return end
  local is_front = status == "501" or begins(head:get("content-type") or "", {{"application/json"}})
  local body = handle:body(true)
  local text = body:getBytes(0, math.min(body:length(), 200))
  local whole = status == "404" and text:match('^{{"error":"(.*)"}}%s*$')
  if whole and is_version(whole) then
    handle:headers():replace("content-length", body:setBytes('{{"error":"' .. whole .. VERSIONS .. '"}}'))
    return
  end
  local said = message_of(text, words)
  local better = said and meant(status, said, is_front, words)
  if not better then return end
  handle:headers():replace(":status", better)  -- `head` is dead once the body was awaited
  if better == "429" then
    handle:headers():replace("retry-after", "1")
    hand_on(handle)
  end
end
"""


def upstream_filters() -> list[dict[str, Any]]:
    """The router's filters for what it sends upstream: they run for each attempt, before it is judged worth another.

    In the router and not in the clusters, each of which would have a Lua state of its own for every worker: 300 models with
    candidates and two workers took 686 MB instead of 166 MB. A cluster that names filters of its own would go without these.
    """
    prefix = f"{_TYPES}envoy.extensions.filters.http"
    script = {"@type": f"{prefix}.lua.v3.Lua", "default_source_code": {"inline_string": ANSWERS_LUA}}
    codec = {"@type": f"{prefix}.upstream_codec.v3.UpstreamCodec"}
    return [
        event_streams.event_streams(),
        _unless_good(script),
        {"name": "envoy.filters.http.upstream_codec", "typed_config": codec},
    ]


def _unless_good(script: dict[str, Any]) -> dict[str, Any]:
    """The script's filter. Envoy does not start it for an answer with status 200 and without a gRPC status in its head."""
    skip = {"@type": f"{_TYPES}envoy.extensions.filters.common.matcher.action.v3.SkipFilter"}
    has_status = _head_matches("grpc-status", {"safe_regex": {"google_re2": {}, "regex": ".+"}})
    is_good = {"and_matcher": {"predicate": [_head_matches(":status", {"exact": "200"}), {"not_matcher": has_status}]}}
    on_match = {"action": {"name": "skip", "typed_config": skip}}
    return {
        "name": FILTER,
        "typed_config": {
            "@type": f"{_TYPES}envoy.extensions.common.matching.v3.ExtensionWithMatcher",
            "xds_matcher": {"matcher_list": {"matchers": [{"predicate": is_good, "on_match": on_match}]}},
            "extension_config": {"name": FILTER, "typed_config": script},
        },
    }


def _head_matches(name: str, value: dict[str, Any]) -> dict[str, Any]:
    head = {"@type": f"{_TYPES}envoy.type.matcher.v3.HttpResponseHeaderMatchInput", "header_name": name}
    return {"single_predicate": {"input": {"name": "head", "typed_config": head}, "value_match": value}}


def attempt_metadata(attempt_timeout_s: float, kind: str) -> dict[str, dict[str, Any]]:
    """Returns a virtual host's metadata for the filters: how long an attempt may take, and the model's server kind."""
    about = {"attempt_timeout_ms": f"{1000 * attempt_timeout_s:.0f}", "kind": kind}
    return {FILTER: about, event_streams.FILTER: {"kind": kind}}


def second_is_late() -> dict[str, Any]:
    """Returns an access log's filter for requests with a second attempt after a late first one."""
    return {"header_filter": {"header": {"name": LATE_HEADER, "string_match": {"exact": "true"}}}}


def is_late() -> dict[str, Any]:
    """Returns an access log's filter for requests with a late first attempt that was not shed."""
    shed = {"filter": NAMESPACE, "path": [{"key": SHED}], "value": {"string_match": {"exact": "no"}}}
    not_shed = {"metadata_filter": {"matcher": shed, "match_if_key_not_found": True}}
    return {"and_filter": {"filters": [second_is_late(), not_shed]}}
