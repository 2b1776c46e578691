-- What the gateway does first: each request gets its model's name, and what would harm a server is refused before any
-- server hears of it. `LIMITS` stands before this text; serving/traffic/control_plane/request_guard.py says where each number comes from.
-- A fault in a script lets its request pass, so all of this runs in `pcall`, and a fault refuses.

-- The collector looks through all that is alive for each cycle; a request leaves little behind, so that cycles may be rare.
collectgarbage("setpause", 400)

local byte, find, gmatch, gsub, match, sub = string.byte, string.find, string.gmatch, string.gsub, string.match, string.sub

-- JSON ------------------------------------------------------------------------------------------------------------------

local NO_SHAPE = "a shape must be a list of at most " .. LIMITS.dims .. " sizes from 0 to " .. LIMITS.size
local TOO_LARGE = "the shapes claim more elements than the request has bytes"

-- How many elements a shape claims, or nil where it is none. Sizes beside a 0 count for `spread`: nothing is claimed, but who
-- multiplies them may still overflow.
local function claimed(sizes)
  local elements, spread, count = 1, 1, 0
  for _, size in ipairs(sizes) do
    count = count + 1
    if not (size >= 0 and size <= LIMITS.size) or count > LIMITS.dims then return nil end
    elements = elements * size
    if size > 0 then spread = spread * size end
  end
  return spread <= LIMITS.size and elements or nil
end

local function large_batch(most)
  return "this model takes batches of up to " .. most
end

-- What the list at `at` claims, and its first size.
local function listed(text, at)
  local list = match(sub(text, at, at + LIMITS.shape_text), "^%s*%[([^%]]*)%]")
  if not list then return nil end
  local sizes = {}
  for size in gmatch(list, "[^,%s]+") do sizes[#sizes + 1] = tonumber(size) or -1 end
  return claimed(sizes), sizes[1]
end

-- The text of a JSON string, in which any letter may be written as \u00..
local function unescaped(text)
  return (gsub(text, "\\u00(%x%x)", function(code) return string.char(tonumber(code, 16)) end))
end

-- The longest way to write a name that is read here, which is `stream`.
local SPELT_OUT = 36

-- The name between the quotes at `from` and `to`; nil if it is too long to be read here.
local function name_of(text, from, to, is_escaped)
  if to - from - 1 > SPELT_OUT then return nil end
  local name = sub(text, from + 1, to - 1)
  return is_escaped and unescaped(name) or name
end

local function is_shape(text, from, to, is_escaped)
  return (is_escaped or to - from == 6) and name_of(text, from, to, is_escaped) == "shape"
end

local TRUE = "^%s*true"
local MODEL_BYTES = 512

-- Notes the members `model` and `stream` of the document (`told`), whose name ends before `after`.
-- A text that names no model is the name of an unknown one.
local function note_member(told, name, text, after)
  if name == "model" then
    local value = match(text, '^%s*"([^"]*)"', after)
    local is_short = value and #value <= MODEL_BYTES
    told.model = value and (is_short and match(unescaped(value), "^[%w_%-]*$") or LIMITS.unknown_model)
  elseif name == "stream" then
    told.is_stream = match(text, TRUE, after) ~= nil
  end
end

-- Why the JSON `text` is refused, or nil. `told`: a table for what the body says of its model, which has no shapes then. `room`: bytes of the whole request; an element takes at least one. `batch`: the largest first
-- size of an input, nil where the model has no batches. Shapes stand three
-- levels deep, in an object in the list `inputs` of the document, and nowhere else. One loop over bytes is what LuaJIT makes
-- fast: patterns, pieces and tables cost five to thirty times as much.
local function json_fault(text, room, batch, told)
  local size, i, depth, names, elements = #text, 1, 0, 0, 0
  while i <= size do
    local c = byte(text, i)
    if c == 34 then -- a text, to its end
      local from, is_escaped = i, false
      i = i + 1
      while i <= size do
        c = byte(text, i)
        if c == 92 then
          is_escaped = true
          i = i + 1
        elseif c == 34 then
          break
        end
        i = i + 1
      end
      local after = i + 1
      c = byte(text, after)
      while c == 32 or c == 10 or c == 13 or c == 9 do
        after = after + 1
        c = byte(text, after)
      end
      if c == 58 then -- it was a name
        names = names + 1
        if names > LIMITS.names then return "more than " .. LIMITS.names .. " names" end
        if told then
          if depth == 1 then note_member(told, name_of(text, from, i, is_escaped), text, after + 1) end
        elseif depth == 3 and is_shape(text, from, i, is_escaped) then
          local more, first = listed(text, after + 1)
          if not more then return NO_SHAPE end
          if batch and first and first > batch then return large_batch(batch) end
          elements = elements + more
          if elements > room then return TOO_LARGE end
        end
      end
    elseif c == 91 or c == 123 then
      depth = depth + 1
      if depth > LIMITS.depth then return "nested more than " .. LIMITS.depth .. " levels deep" end
    elseif c == 93 or c == 125 then
      depth = depth - 1
    end
    i = i + 1
  end
end

-- Returns whether a short JSON text is surely sound: `json_fault` would find nothing. It looks for brackets and for the name `shape`
-- wherever they stand, and a name takes three bytes at least. No name is spelt out in a text without a backslash.
local function is_plain(text, room, batch)
  if #text > 3 * LIMITS.names or find(text, "\\", 1, true) then return false end
  local at, opened = find(text, "[%[{]"), 0
  while at do
    opened = opened + 1
    if opened > LIMITS.depth then return false end
    at = find(text, "[%[{]", at + 1)
  end
  local _, after = find(text, '"shape"', 1, true)
  while after do
    local list = match(text, "^%s*:%s*%[([%d,%s]*)%]", after + 1)
    if not list or #list > LIMITS.dims then return false end
    local elements, first = 1, nil
    for size in gmatch(list, "%d+") do
      size = tonumber(size)
      first = first or size
      elements = elements * size
      if size == 0 or elements > room then return false end
    end
    if batch and first and first > batch then return false end
    room = room - elements
    _, after = find(text, '"shape"', after, true) -- a quote that ends one text may begin the next
  end
  return true
end

-- gRPC ------------------------------------------------------------------------------------------------------------------

local NO_MESSAGE = "not a message of this call"
local WINDOW = 16384

-- The byte at an offset from 0, read by windows: a copy of the whole body would cost more than everything else here.
local function reader(body, size)
  local text, from, to = "", 0, 0
  return function(at)
    if at < from or at >= to then
      from, to = at, math.min(at + WINDOW, size)
      text = body:getBytes(from, to - from)
    end
    return byte(text, at - from + 1)
  end
end

-- (value, where it ends), or nil. A double holds more than 64 bits, though not exactly; whatever is that large is refused.
local function varint(read, at, stop)
  local value, scale = 0, 1
  for _ = 1, 10 do
    if at >= stop then return nil end
    local c = read(at)
    at = at + 1
    value = value + c % 128 * scale
    if c < 128 then return value, at end
    scale = scale * 128
  end
end

-- Calls each(number, wire, value, from, to) for the fields in [at, stop), `value` of a varint only; ends early with what `each`
-- gives. A tag beyond 32 bits would be cut to another field by the server. Groups are in no message of these calls.
local function fields(read, at, stop, count, each)
  while at < stop do
    local tag, value, from
    tag, at = varint(read, at, stop)
    if not tag or tag < 8 or tag >= 4294967296 then return NO_MESSAGE end
    count.left = count.left - 1
    if count.left < 0 then return "more than " .. LIMITS.fields .. " fields" end
    local wire = tag % 8
    if wire == 0 then
      value, at = varint(read, at, stop)
    elseif wire == 1 then
      at = at + 8
    elseif wire == 5 then
      at = at + 4
    elseif wire == 2 then
      value, from = varint(read, at, stop)
      at = value and from + value
    else
      return NO_MESSAGE
    end
    if not at or at > stop then return NO_MESSAGE end
    local why = each((tag - wire) / 8, wire, value, from, at)
    if why then return why end
  end
end

-- Why an input is refused: its field 3 is the shape, one by one or packed. `claims` adds up what all inputs claim.
local function input_fault(read, from, to, count, claims)
  local sizes = {}
  local function add(size)
    sizes[#sizes + 1] = size
    return #sizes > LIMITS.dims and NO_SHAPE or nil
  end
  local why = fields(read, from, to, count, function(number, wire, value, start, stop)
    if number ~= 3 then return nil end
    if wire == 0 then return add(value) end
    while wire == 2 and start < stop do
      value, start = varint(read, start, stop)
      local fault = value and add(value) or not value and NO_MESSAGE
      if fault then return fault end
    end
  end)
  if why then return why end
  local more = claimed(sizes)
  if not more then return NO_SHAPE end
  claims.first = math.max(claims.first, sizes[1] or 0)
  claims.elements = claims.elements + more
  return claims.elements > claims.room and TOO_LARGE or nil
end

-- Returns (claimed elements, first size) of the input in [at, stop), or nil. See `plain_message`.
local function plain_input(text, at, stop)
  local elements, first = 1, nil
  while at < stop do
    local tag, length = byte(text, at, at + 1)
    local from = at + 2
    at = from + (length or 0)
    if tag % 8 ~= 2 or tag < 10 or tag > 127 or not length or length > 127 or at > stop then return nil end
    if tag == 26 then
      if first or length > LIMITS.dims then return nil end
      while from < at do
        local size, more = byte(text, from, from + 1)
        from = from + 1
        if size > 127 then
          if from == at or more > 127 then return nil end
          size, from = size - 128 + more * 128, from + 1
        end
        first = first or size
        elements = elements * size
        if size == 0 or elements > LIMITS.size then return nil end
      end
    end
  end
  return elements, first
end

-- Returns what a short message states, as `message_in` does, or nil if that has to read it closely. Tags and lengths of a stock client's
-- short message take one byte, a raw tensor's length two. A field takes two bytes at least.
local function plain_message(text, size, is_infer)
  if byte(text, 1) ~= 0 or (byte(text, 4) * 256 + byte(text, 5)) ~= size - 5 or byte(text, 2) + byte(text, 3) > 0 then return nil end
  local at, stop, name, elements, largest = 6, size + 1, nil, 0, 0
  while at < stop do
    local tag, length, more = byte(text, at, at + 2)
    if tag % 8 ~= 2 or tag < 10 or tag > 127 or not length then return nil end
    local from = at + 2
    if length > 127 then
      if tag == 10 or not more or more > 127 then return nil end
      length, from = length - 128 + more * 128, from + 1
    end
    at = from + length
    if at > stop then return nil end
    if tag == 10 then
      name = sub(text, from, at - 1)
    elseif tag == 42 and is_infer then
      local claims, first = plain_input(text, from, at)
      if not claims then return nil end
      elements = elements + claims
      if first and first > largest then largest = first end
    end
  end
  return elements <= size and { name = name, first = largest } or nil
end

-- Returns what the body of a gRPC call states, read once:
--   name: field 1 of its message (model_name, name or service). The last one counts; nil if there is none.
--   status, why: why no server is to have it; nil if it is one sound message in one frame.
--   first: the largest first size of an input's shape. `inputs` are field 5 of ModelInferRequest.
local function message_in(body, size, call)
  if size < 5 then return { status = "400", why = "no message" } end
  local is_infer, name = call == "ModelInfer", nil
  local plain = size <= 2 * LIMITS.fields and plain_message(body:getBytes(0, size), size, is_infer)
  if plain then return plain end
  local read = reader(body, size)
  if read(0) ~= 0 then return { status = "415", why = "send messages without compression" } end
  local length = ((read(1) * 256 + read(2)) * 256 + read(3)) * 256 + read(4)
  local count, claims = { left = LIMITS.fields }, { elements = 0, room = size, first = 0 }
  local why = fields(read, 5, size, count, function(number, wire, _, from, to)
    if wire ~= 2 then return nil end
    if number == 1 then
      name = to - from < 512 and (to > from and body:getBytes(from, to - from) or "") or nil
    elseif number == 5 and is_infer then
      return input_fault(read, from, to, count, claims)
    end
  end)
  if not is_infer then why = nil end -- no server expands such a message
  if length ~= size - 5 then why = "not one whole message" end
  return { name = name, status = why and "400", why = why, first = claims.first }
end

-- Returns (status, why) of a refused gRPC request, or nil.
local function message_fault(message, size, most, batch)
  if size > most then return "413", "this request may have " .. most .. " bytes" end
  if message.status then return message.status, message.why end
  if batch and message.first > batch then return "400", large_batch(batch) end
end

-- gRPC servers accept one value in a line that ends in -bin, with padding or without, and no stray bits at its end.
local LAST = { [0] = "", [2] = "[AQgw]$", [3] = "[AEIMQUYcgkosw048]$" }
local PAD = { [0] = "", [2] = "==", [3] = "=" }

local function is_base64(text)
  local plain, pad = match(text, "^([%w+/]*)(=*)$")
  local rest = plain and #plain % 4
  return plain and LAST[rest] and match(plain, LAST[rest]) and (pad == "" or pad == PAD[rest])
end

local READ_LINES = { ["content-encoding"] = true, ["grpc-encoding"] = true, ["grpc-timeout"] = true, [LIMITS.model_header] = true }

-- Returns the lines of a gRPC call's head that the guard reads, and (status, why) if a server refuses the head. Servers count 32 bytes more
-- for each line. To ask for a line costs as much as to come by it here.
local function read_head(headers)
  local size, lines = 0, {}
  for name, value in pairs(headers) do
    size = size + #name + #value + 32
    if READ_LINES[name] then lines[name] = lines[name] and lines[name] .. "," .. value or value end
    if byte(name, -1) == 110 and sub(name, -4) == "-bin" and not is_base64(value) then
      return lines, "400", "the metadata " .. sub(name, 1, 64) .. " are not base64; gRPC clients encode what ends in -bin themselves"
    end
  end
  if size > LIMITS.metadata then
    return lines, "431", "metadata may have " .. LIMITS.metadata .. " bytes, 32 more for each line; send less of it"
  end
  return lines
end

local UNITS = { H = 3600000, M = 60000, S = 1000, m = 1, u = 0.001, n = 0.000001 }

-- Returns the caller's own deadline in milliseconds, or nil if the call has none that can be read.
local function deadline_ms(text)
  local number, unit = match(text or "", "^(%d+)([HMSmun])$")
  return number and #number <= 8 and tonumber(number) * UNITS[unit] or nil
end

-- HTTP ------------------------------------------------------------------------------------------------------------------

-- (status, why) of a refused HTTP request, or nil. `head`: the header that tells how many bytes of the body are JSON, with
-- tensors as they are behind it; all of it without one.
local function http_fault(body, size, head, most, batch)
  if size > most then return "413", "this model takes requests of up to " .. most .. " bytes" end
  local json = size
  if head then
    json = match(head, "^%d+$") and tonumber(head)
    if not json or json > size then return "400", "inference-header-content-length is no length within this request" end
  end
  if json > LIMITS.json then
    return "413", "JSON may have " .. LIMITS.json .. " bytes; send tensors in binary, or over gRPC"
  end
  if json == 0 then return nil end
  local text = body:getBytes(0, json)
  local why = not is_plain(text, size, batch) and json_fault(text, size, batch)
  if why then return "400", why end
end

-- What a body says of its model, as {model, is_stream}, and (status, why) of one that is refused.
local function named_in(body, size)
  local told = {}
  if size > LIMITS.json then return told, "413", "JSON may have " .. LIMITS.json .. " bytes" end
  local why = size > 0 and json_fault(body:getBytes(0, size), size, nil, told)
  return told, why and "400", why
end

-- The guard -------------------------------------------------------------------------------------------------------------

-- What routes state of their models, by the text that states it: to read a text once is cheaper than to ask for each number.
local NO_LIMITS, KNOWN = {}, {}

-- {most, batch, least_ms, tells_tenants}: bytes of a request, items of a batch, the shortest deadline that any release must keep, and
-- whether the model has tenants or classes. Empty where the host is no model's. A number is nil where the model has no such limit.
-- The routes that most requests take state them too, because to ask a virtual host takes two steps more. Asking for a route's metadata
-- finds the route anew; `virtualHost` alone would show the one from before.
local function limits_of(handle)
  local text = handle:metadata():get("limits") or handle:virtualHost():metadata():get("limits")
  if not text then return NO_LIMITS end
  local known = KNOWN[text]
  if not known then
    local most, batch, least_ms, tells = match(text, "^(%d+) (%d*) (%d*) (%a*)$")
    known = { most = tonumber(most), batch = tonumber(batch), least_ms = tonumber(least_ms), tells_tenants = tells ~= "" }
    KNOWN[text] = known
  end
  return known
end

local function refuse(handle, status, why)
  handle:respond({ [":status"] = status }, why)
end

-- The routes that go by this name hold from here on, for what they take too. Returns the limits. Each change of the head makes Envoy forget
-- the route that it found.
local function route_as(handle, headers, name)
  headers:replace(LIMITS.model_header, name)
  return limits_of(handle)
end

-- The routes of unknown models hold, until more is known. They bound how much is held of the request.
local function route_as_unknown(handle, headers)
  headers:replace(LIMITS.model_header, LIMITS.unknown_model)
  handle:metadata() -- finds the route anew
end

-- By the model's own routes; where it has none, by those of unknown models. `named`: what the header says. Returns the limits.
local function name_model(handle, headers, model, named)
  local name = named
  if model and model ~= "" then
    name = model
  elseif name == "" or name == LIMITS.unknown_model then
    name = string.lower(match(headers:get(":authority") or "", "^([^:]+)") or LIMITS.unknown_model)
  end
  local limits = route_as(handle, headers, name)
  return limits.most and limits or route_as(handle, headers, LIMITS.unknown_model)
end

-- From here on the request is on the route that bounds how long its body may take. Envoy finds routes anew for the first
-- `metadata` alone, so this stands before the model is named. The caller's own deadline of a gRPC call is read before: Envoy
-- writes the time limit of that route over it.
local function expect_body(headers)
  headers:replace(LIMITS.body, LIMITS.awaited)
end

-- The request leaves that route. The next who asks finds its route anew: a split is drawn when the request is sent on.
-- The script that reads answers needs the time.
local function end_of_body(handle, headers, is_grpc, deadline)
  headers:replace(LIMITS.body, tostring(handle:timestamp()))
  if is_grpc then
    headers:remove("grpc-timeout")
    if deadline then headers:add("grpc-timeout", deadline) end
  end
end

-- Marks a call whose own deadline is shorter than the time that any release must keep.
local function note_deadline(handle, deadline, least_ms)
  local own_ms = least_ms and deadline_ms(deadline)
  if own_ms and own_ms < least_ms then
    handle:streamInfo():dynamicMetadata():set(LIMITS.about, LIMITS.shed, LIMITS.by_caller)
  end
end

-- The model that a stream's first message names (`serving.traffic.control_plane.stream_model`), or nil.
local function model_of_stream(handle)
  local known = handle:streamInfo():dynamicMetadata():get(LIMITS.stream_filter) or {}
  return (known.model_name or {})[1]
end

-- A health check that names a model goes to that model's routes. Returns the limits.
local function check_health(handle, deadline)
  local body = handle:body(true) -- handles from before are dead behind this line
  local headers = handle:headers()
  end_of_body(handle, headers, true, deadline)
  local size = body:length()
  local model = message_in(body, size).name
  if size > LIMITS.question then return refuse(handle, "413", "a health check may have " .. LIMITS.question .. " bytes") end
  if model and model ~= "" then
    headers:replace(":path", LIMITS.check_model)
    return name_model(handle, headers, model, "")
  elseif LIMITS.drained then
    headers:replace(":path", LIMITS.drained .. LIMITS.check)
  end
end

-- What asks about no model: the gateway answers it. One that is drained answers that it is not ready. Returns the limits.
local function answer_self(handle, headers, plain)
  local is_check = plain == LIMITS.check
  if LIMITS.drained and LIMITS.asks_ready[plain] and not is_check then
    headers:replace(":path", LIMITS.drained .. plain)
  end
  local deadline = is_check and headers:get("grpc-timeout") or nil
  if is_check then expect_body(headers) end
  route_as_unknown(handle, headers)
  return is_check and check_health(handle, deadline) or NO_LIMITS
end

-- A stream, whose messages pass unread. Returns the limits.
local function admit_stream(handle, headers, named, encoding)
  if not LIMITS.encodings[encoding or "identity"] then
    return refuse(handle, "415", "no server here reads this grpc-encoding; send gzip, deflate or identity")
  end
  return name_model(handle, headers, named == "" and model_of_stream(handle) or nil, named)
end

-- The model of a call whose head does not name it. Returns the limits.
local function name_by_message(handle, headers, call, name)
  local limits = name_model(handle, headers, name, "")
  if call == "ModelStatistics" and (name or "") == "" and not limits.most then -- of all models
    headers:replace(":path", LIMITS.all_statistics)
  end
  return limits
end

-- A call whose body names its model. A stream is marked for its route. Returns the limits.
local function admit_named_body(handle, headers)
  headers:remove(LIMITS.stream_header)
  local named = headers:get(LIMITS.model_header) or ""
  local declared = tonumber(headers:get("content-length") or "")
  if declared and declared > LIMITS.json then return refuse(handle, "413", "JSON may have " .. LIMITS.json .. " bytes") end
  expect_body(headers)
  route_as_unknown(handle, headers)
  local body = handle:body(true) -- handles from before are dead behind this line
  headers = handle:headers()
  end_of_body(handle, headers)
  local size = body:length()
  local told, status, why = named_in(body, size)
  if status then return refuse(handle, status, why) end
  if told.is_stream then headers:add(LIMITS.stream_header, "yes") end
  local limits = name_model(handle, headers, named == "" and told.model or nil, named)
  if limits.most and size > limits.most then
    return refuse(handle, "413", "this model takes requests of up to " .. limits.most .. " bytes")
  end
  return limits
end

-- {plain, bare, call, model, is_infer}: the path without its query; with the query, but without a slash at its end, where it has one; the
-- gRPC call; the model of an HTTP path, and whether it is asked to infer.
local function read_path(path)
  local plain, bare = match(path, "^[^?]*"), nil
  if #plain > 1 and byte(plain, -1) == 47 then -- a slash at the end changes nothing
    local query = sub(path, #plain + 1)
    plain = match(plain, "^(/.-)/+$") or "/"
    bare = plain .. query
  end
  local call = match(plain, "^/inference%.GRPCInferenceService/(Model%a*)$")
  local model = not match(plain, "/trace/setting$") and match(plain, "^/v2/models/([^/]+)")
  return { plain = plain, bare = bare, call = call, model = model, is_infer = match(plain, "/infer$") ~= nil }
end

-- Few paths are asked again and again. Callers choose them, so few and short ones are kept.
local PATHS, KEPT, LONGEST_KEPT = {}, 200, 200
local kept = 0

local function path_of(text)
  local path = PATHS[text]
  if path then return path end
  path = read_path(text)
  if #text > LONGEST_KEPT then return path end
  if kept == KEPT then
    PATHS, kept = {}, 0
  end
  PATHS[text], kept = path, kept + 1
  return path
end

-- Refuses a request, or gives it its model's name and returns the limits of that model.
local function admit(handle)
  local headers = handle:headers()
  local text = headers:get(":path") or ""
  local path = path_of(text)
  if path.bare then headers:replace(":path", path.bare) end
  local plain, call, model = path.plain, path.call, path.model
  local names_itself = LIMITS.names_itself[plain]
  if call == "ModelStreamInfer" or not (call or model or names_itself) then headers:remove(LIMITS.body) end -- others' are replaced
  if names_itself then
    if headers:get("content-encoding") then return refuse(handle, "415", "send the request without content-encoding") end
    return admit_named_body(handle, headers)
  end
  if not (call or model) then return answer_self(handle, headers, plain) end
  local lines, status, why, encoding, named, deadline, limits
  if call then
    if find(text, "?", 1, true) then return refuse(handle, "400", "a gRPC path has no query; take off what follows the name of the call") end
    lines, status, why = read_head(headers)
    if status then return refuse(handle, status, why) end
    encoding, named, deadline = lines["content-encoding"], lines[LIMITS.model_header], lines["grpc-timeout"]
  else
    encoding, named = headers:get("content-encoding"), headers:get(LIMITS.model_header)
  end
  named = named or ""
  if encoding then return refuse(handle, "415", "send the request without content-encoding") end
  if call == "ModelStreamInfer" then return admit_stream(handle, headers, named, lines["grpc-encoding"]) end
  -- Triton heeds this header for `infer` alone, and parses the whole body of everything else.
  local head = model and path.is_infer and headers:get("inference-header-content-length")
  local declared = model and tonumber(headers:get("content-length") or "")
  expect_body(headers)
  if model or named ~= "" then
    limits = name_model(handle, headers, named == "" and model or nil, named)
    -- Nobody's request is answered 404 by its route; who sends a body to no model holds no memory here.
    if not limits.most then return end_of_body(handle, headers, call, deadline) end
  else
    route_as_unknown(handle, headers)
  end
  if declared and declared > (head and limits.most or math.min(limits.most, LIMITS.json)) then
    return refuse(handle, "413", "this model takes requests of up to " .. limits.most .. " bytes, " .. LIMITS.json .. " of them as JSON")
  end
  local body = handle:body(true) -- handles from before are dead behind this line
  headers = handle:headers()
  end_of_body(handle, headers, call, deadline)
  local size = body:length()
  local message = call and message_in(body, size, call)
  if not limits then limits = name_by_message(handle, headers, call, message.name) end
  if not limits.most then return end
  if call then
    status, why = message_fault(message, size, call == "ModelInfer" and limits.most or LIMITS.question, limits.batch)
  else
    status, why = http_fault(body, size, head, limits.most, limits.batch)
  end
  if status then return refuse(handle, status, why) end
  if deadline then note_deadline(handle, deadline, limits.least_ms) end
  return limits
end

-- Writes down the tenant and the class. Two headers of the tenant's name are read as one text with a comma, which is nobody's name.
local function note_tenant(handle)
  local known, about, headers = handle:virtualHost():metadata(), handle:streamInfo():dynamicMetadata(), handle:headers()
  local header, classes = known:get("header"), known:get("classes")
  local is_believed = (about:get(LIMITS.peers) or {})["shadow_engine_result"] == "allowed"
  local tenant
  if header then
    local name = is_believed and headers:get(header)
    tenant = name and (known:get("names") or {})[name] and name or LIMITS.others
    about:set(LIMITS.about, "tenant", tenant)
  end
  if not classes then return end
  local default = known:get("default_class")
  local said = known:get("class_header")
  said = is_believed and said and said ~= "" and headers:get(said)
  local class = said and classes[said] and said or tenant and (known:get("class_of") or {})[tenant] or default
  about:set(LIMITS.about, "class", class)
  headers:remove(LIMITS.class_header) -- routes go by what is written there, and a caller may have written it
  if class ~= default then headers:add(LIMITS.class_header, class) end
end

local function guard(handle)
  local limits = admit(handle)
  if limits and limits.tells_tenants then note_tenant(handle) end
end

function envoy_on_request(handle)
  local is_well, fault = pcall(guard, handle)
  if not is_well then
    handle:logErr("the request guard failed: " .. tostring(fault))
    refuse(handle, "400", "this request cannot be read")
  end
end
