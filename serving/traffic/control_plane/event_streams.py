"""Measures streams of text in the gateway: time to the first text, largest gap, number of events with text, and the end.

An upstream filter of the router reads each attempt's events as they pass. It keeps one line of the stream, and holds nothing back. If
the script fails, Envoy passes the bytes on, and the stream counts by its status.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from registry.core.kinds import KINDS
from registry.core.kinds.events import Events
from serving.traffic.control_plane.calls import STREAM_HEADER
from serving.traffic.control_plane.clusters import NAMESPACE
from serving.traffic.core.outcomes import StreamEnd

#: Name of the filter, and of the virtual host's metadata for it.
FILTER: Final = "event_streams"
#: Metadata of a request: a `StreamEnd`, milliseconds to the first text and of the largest gap, and events with text.
END, FIRST, GAP, TEXTS = "end", "first", "gap", "texts"
#: Metadata of a request: its attempt's start, or its last text, in milliseconds since 1970.
HEARD: Final = "heard"
#: Bytes of one line that are read.
LONGEST: Final = 8192
_TYPES: Final = "type.googleapis.com/envoy.extensions"


def _table(events: Events) -> str:
    def listed(texts: Iterable[str]) -> str:
        return "{ " + ", ".join(map(json.dumps, texts)) + " }"

    quoted = '"{}"'.format
    members = {
        "done": json.dumps(events.done),
        "texts": listed(map(quoted, events.texts)),
        "lists": listed(map(quoted, events.lists)),
        "error": json.dumps(events.error),
        "code": json.dumps(f'"{events.code}"%s*:%s*"?(%d+)'),
        "busy": "{ " + ", ".join(f'["{status}"] = true' for status in events.busy) + " }",
        "reason": json.dumps(quoted(events.reason)),
        "failures": listed(f'^%s*:%s*"{reason}"' for reason in events.failures),
    }
    return "{ " + ", ".join(f"{name} = {text}" for name, text in members.items()) + " }"


_EVENTS: Final = ", ".join(f'["{name}"] = {_table(kind.events)}' for name, kind in KINDS.items() if kind.events)
EVENTS_LUA: Final = f"""
local EVENTS = {{ {_EVENTS} }}

local function note(handle, name, value)
  handle:streamInfo():dynamicMetadata():set("{NAMESPACE}", name, value)
end

-- Whether the data have this quoted member with such a value. A quote within a text has a backslash before it.
local function has(data, member, value)
  local _, stop = data:find(member, 1, true)
  while stop do
    if data:find(value, stop + 1) then return true end
    _, stop = data:find(member, stop + 1, true)
  end
  return false
end

local function has_text(events, data)
  for _, member in ipairs(events.texts) do
    if has(data, member, '^%s*:%s*"[^"]') then return true end
  end
  for _, member in ipairs(events.lists) do
    if has(data, member, "^%s*:%s*%[%s*{{") then return true end
  end
  return false
end

local function is_failed(events, data)
  for _, value in ipairs(events.failures) do
    if has(data, events.reason, value) then return true end
  end
  return false
end

local function is_error(events, data)
  local member = '"' .. events.error .. '"'
  return has(data, member, "^%s*:%s*{{") or has(data, member, '^%s*:%s*"[^"]')
end

-- The end of a stream at this line, and whether the line has text. `seen` holds what came before.
local function read(events, line, seen)
  if line:sub(-1) == "\\r" then line = line:sub(1, -2) end
  if line == "" then seen.is_error = false end
  local field, data = line:match("^(%a+): ?(.*)$")
  if field == "event" then seen.is_error = data == events.error end
  if field ~= "data" and field ~= events.error then return end
  data = data:match("^(.-)%s*$")
  if seen.is_error or field == events.error or is_error(events, data) then
    local is_busy = seen.texts == 0 and events.busy[data:match(events.code) or ""]
    return is_busy and "{StreamEnd.BUSY}" or "{StreamEnd.ERROR}"
  end
  if data == events.done then return "{StreamEnd.DONE}" end
  return is_failed(events, data) and "{StreamEnd.ERROR}" or nil, has_text(events, data)
end

-- llama.cpp promises to keep the connection of a stream and closes it, and the next request on it gets 503.
function envoy_on_request(handle)
  handle:headers():replace("connection", "close")
  note(handle, "{HEARD}", handle:timestamp())
  note(handle, "{END}", "{StreamEnd.SILENT}")
end

-- Values of an earlier chunk, such as the metadata's, are dead after a wait, and Envoy reports no error: each is asked for anew.
function envoy_on_response(handle)
  local head = handle:headers()
  local encoding = head:get("content-encoding") or "identity"
  if head:get(":status") ~= "200" then return end
  if encoding ~= "identity" or (head:get("content-type") or ""):sub(1, 17):lower() ~= "text/event-stream" then
    note(handle, "{END}", "{StreamEnd.UNREAD}")
    return
  end
  local events = EVENTS[handle:virtualHost():metadata():get("kind") or ""]
  local known = handle:streamInfo():dynamicMetadata():get("{NAMESPACE}") or {{}}
  local heard = tonumber(known["{HEARD}"])
  if not events or not heard then return end
  local seen, ended, gap, line = {{ texts = 0, is_error = false }}, nil, 0, ""
  local function take(now)
    local at_end, has_more = read(events, line, seen)
    line = ""
    if has_more then
      local took = math.max(0, now - heard)
      seen.texts, heard = seen.texts + 1, now
      if seen.texts == 1 then
        note(handle, "{FIRST}", tostring(took))
        note(handle, "{GAP}", "0")
      elseif took > gap then
        gap = took
        note(handle, "{GAP}", tostring(gap))
      end
      if not ended and seen.texts == 1 then note(handle, "{END}", "{StreamEnd.TEXT}") end
    end
    if at_end and (not ended or ended == "{StreamEnd.DONE}") then
      ended = at_end
      note(handle, "{END}", ended)
    end
    return has_more
  end
  for chunk in handle:bodyChunks() do
    local now, text, at, has_text_here = handle:timestamp(), chunk:getBytes(0, chunk:length()), 1, false
    while true do
      local stop = text:find("\\n", at, true)
      local room = {LONGEST} - #line
      if room > 0 then line = line .. text:sub(at, math.min((stop or #text + 1) - 1, at + room - 1)) end
      if not stop then break end
      has_text_here = take(now) or has_text_here
      at = stop + 1
    end
    if has_text_here then note(handle, "{HEARD}", now) end
  end
  take(heard)
  note(handle, "{TEXTS}", tostring(seen.texts))
  if not ended then note(handle, "{END}", "{StreamEnd.NO_END}") end
end
"""


def event_streams() -> dict[str, Any]:
    """Returns the router's upstream filter. Envoy starts it for requests alone that the request guard marked as streams."""
    script = {
        "@type": f"{_TYPES}.filters.http.lua.v3.Lua",
        "default_source_code": {"inline_string": EVENTS_LUA},
    }
    head = {
        "@type": "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
        "header_name": STREAM_HEADER,
    }
    marked = {"input": {"name": "head", "typed_config": head}, "value_match": {"exact": "yes"}}
    skip = {"@type": f"{_TYPES}.filters.common.matcher.action.v3.SkipFilter"}
    is_other = {"not_matcher": {"single_predicate": marked}}
    on_match = {"action": {"name": "skip", "typed_config": skip}}
    return {
        "name": FILTER,
        "typed_config": {
            "@type": f"{_TYPES}.common.matching.v3.ExtensionWithMatcher",
            "xds_matcher": {"matcher_list": {"matchers": [{"predicate": is_other, "on_match": on_match}]}},
            "extension_config": {"name": FILTER, "typed_config": script},
        },
    }
