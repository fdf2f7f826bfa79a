-- Move the head of one tenant's ingress to where each entry belongs, in order, and delete it from ingress beside that.
-- KEYS  lease  ingress
-- ARGV  epoch  prefix  tenant  retain_ms  live_ms  log_live_ms  max_stream_bytes  max_held  max_rejected  max_told
--       max_open  max_open_bytes  n
--       { id  op  stream  more }*
--   live_ms       how long the keys of a stream live untouched
--   max_open, max_open_bytes   of the tenant's open streams together; 0 for no limit
--   max_told      errors that one reply may hold; what is wrong beyond that is told in `rejected`
--   op            the entry's op as the router understood it
--   stream        its stream id, '' if it has none that can be read
--   more          '' for a valid entry that is no open; else a JSON object of strings:
--     digest             of a valid open
--     pod, incarnation   where the router would put a valid open; '' if no pod has room
--     model, affinity    what the choice of another pod for a valid open would need to know
--     code, message, field   what is wrong with the entry; code is '' for a valid one
-- Returns { forwarded, assigned, held, ignored, code, code, … }: counts, then the code of every entry turned away.
-- FENCED: this router does not hold the lease. STALE: the head of ingress is not what was read. Both: nothing done.
--
-- Nothing here is rolled back when a call fails, so each entry's writes are ordered such that only the first of them
-- can fail for a reason (memory, a foreign key type) that the entry or its stream brings along. What a batch does to
-- one stream's route, and the deletion of its entries from ingress, is written once: at the end, or before a failure.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end

local PREFIX, TENANT, RETAIN_MS, LIVE_MS, LOG_LIVE_MS = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local MAX_BYTES, MAX_HELD, MAX_REJECTED, MAX_TOLD = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])
local MAX_OPEN, MAX_OPEN_BYTES = tonumber(ARGV[11]), tonumber(ARGV[12])
local N, FIRST, WIDTH = tonumber(ARGV[13]), 14, 4
local KNOWN = {
  'stream', 'op', 'messages', 'prompt', 'params', 'options', 'text', 'tokens', 'chunk', 'context', 'version', 'expect',
  'traceparent',
}
local IS_KNOWN = {}
for _, name in ipairs(KNOWN) do IS_KNOWN[name] = true end
local HELD = PREFIX .. ':held:' .. TENANT
local REJECTED = PREFIX .. ':rejected:' .. TENANT
local USAGE = PREFIX .. ':usage:' .. TENANT

local head = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', N)
for i = 1, N do
  if not head[i] or head[i][1] ~= ARGV[FIRST + (i - 1) * WIDTH] then return redis.error_reply('STALE') end
end

local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local counts = { 0, 0, 0, 0 }
local FORWARDED, ASSIGNED, ON_HOLD, IGNORED = 1, 2, 3, 4
local codes = {}

-- Keys of a foreign type are an operator's accident; they must not hold up the tenant's other streams.
local function write(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    if string.find(answer.err, 'WRONGTYPE', 1, true) then return nil end
    error(answer)
  end
  return answer
end

local function reject(entry, code)
  write('XADD', REJECTED, 'MAXLEN', '~', MAX_REJECTED, '*', 'code', code, 'message', entry.message, 'field', entry.field,
    'ingress_id', entry.id, 'stream', entry.stream)
  write('PEXPIRE', REJECTED, LIVE_MS)
  codes[#codes + 1] = code
end

local function tell(entry, code, terminal)
  local key = PREFIX .. ':reply:' .. TENANT .. ':' .. entry.stream
  local data = cjson.encode({
    code = code, message = entry.message, field = entry.field ~= '' and entry.field or cjson.null,
    terminal = terminal, ingress_id = entry.id,
  })
  if write('XADD', key, '*', 'event', 'error', 'data', data) then
    redis.call('PEXPIRE', key, terminal and RETAIN_MS or LIVE_MS)
  end
  codes[#codes + 1] = code
end

local function tell_and_go_on(entry, code, route_key)
  -- A producer that sends rubbish without end must not fill the memory with what is wrong with it.
  if redis.call('HINCRBY', route_key, 'told', 1) > MAX_TOLD then return reject(entry, code) end
  tell(entry, code, false)
end

-- What the tenant uses is read once and written once for the batch: it changes with every entry.
local usage, changes = {}, { streams = 0, bytes = 0, taken = 0 }
local function count(name, change) changes[name] = changes[name] + change end
local function used(name)
  if not usage[name] then usage[name] = tonumber(write('HGET', USAGE, name) or 0) or 0 end
  return usage[name] + changes[name]
end
local function write_usage()
  for name, change in pairs(changes) do
    -- What was taken before this count began is not known here: whoever watches it sets it first.
    if change ~= 0 and (name ~= 'taken' or write('HEXISTS', USAGE, 'taken') == 1) then
      write('HINCRBY', USAGE, name, string.format('%.0f', change))
    end
  end
  write('PEXPIRE', USAGE, LIVE_MS)
end

-- The pod may have gone since the router looked, or another router may have filled it: its log would have no reader.
local pods = {}
local function beat_of(pod, incarnation)
  local name = pod .. ' ' .. incarnation
  if pods[name] == nil then
    local readable, value = pcall(cjson.decode, redis.pcall('HGET', PREFIX .. ':pods', pod))
    pods[name] = readable and type(value) == 'table' and value.incarnation == incarnation and value
  end
  return pods[name]
end

local function room(pod, incarnation)
  local beat = pod ~= '' and beat_of(pod, incarnation)
  if not beat then return nil end
  local capacity = type(beat.capacity) == 'table' and tonumber(beat.capacity.max_open_streams)
  local has = tonumber(write('HLEN', PREFIX .. ':assigned:' .. pod .. ':' .. incarnation) or 0)
  if capacity and has >= capacity then return nil end
  return beat
end

local function pick_fields(raw)
  local fields, places, n, bytes = {}, {}, 0, 0
  for j = 1, #raw, 2 do
    local name, value = raw[j], raw[j + 1]
    if IS_KNOWN[name] then
      local place = places[name]
      if place then
        -- Of a field that is there twice the last counts, as in the mapping that the router judged.
        bytes = bytes - #fields[place]
        fields[place] = value
      else
        fields[n + 1], fields[n + 2] = name, value
        n = n + 2
        places[name] = n
      end
      bytes = bytes + #value
    end
  end
  return fields, bytes
end

-- The known fields of an entry, in a table that may be added to, and their bytes. Nearly always they are all that it has.
local looked_at, number = {}, 0
local function known_fields(raw)
  number = number + 1
  local bytes = 0
  for j = 1, #raw, 2 do
    local name = raw[j]
    if not IS_KNOWN[name] or looked_at[name] == number then return pick_fields(raw) end
    looked_at[name] = number
    bytes = bytes + #raw[j + 1]
  end
  return raw, bytes
end

local function end_at_once(entry, code, route_key)
  redis.call('DEL', route_key, PREFIX .. ':entries:' .. TENANT .. ':' .. entry.stream,
    PREFIX .. ':reply:' .. TENANT .. ':' .. entry.stream)
  tell(entry, code, true)
  redis.call('HSET', route_key, 'state', 'ended', 'pod', '', 'incarnation', '', 'attempt', 0, 'seq', 0,
    'digest', entry.digest, 'bytes', 0, 'next_token', 0, 'open_id', entry.id)
  redis.call('PEXPIRE', route_key, RETAIN_MS)
end

-- A stream that waits for a pod is ended here: nobody else would tell its reader.
local function cancel_held(entry, route_key, route)
  local reply_key = PREFIX .. ':reply:' .. TENANT .. ':' .. entry.stream
  local sent = tonumber(route.next_token)
  local data = string.format(
    '{"finish_reason":"cancelled","usage":{"prompt_tokens":0,"completion_tokens":%d,"total_tokens":%d},' ..
    '"timings":{"attempts":%d}}', sent, sent, tonumber(route.attempt))
  if write('XADD', reply_key, '*', 'event', 'done', 'data', data) then redis.call('PEXPIRE', reply_key, RETAIN_MS) end
  redis.call('HSET', route_key, 'state', 'ended')
  redis.call('PEXPIRE', route_key, RETAIN_MS)
  redis.call('DEL', PREFIX .. ':entries:' .. TENANT .. ':' .. entry.stream)
  write('ZREM', HELD, entry.stream)
  count('streams', -1)
  count('bytes', -route.bytes)
  counts[FORWARDED] = counts[FORWARDED] + 1
end

local function open(entry, route_key, fields, bytes)
  if bytes > MAX_BYTES then
    entry.message = 'the open has ' .. bytes .. ' bytes, a stream may have ' .. MAX_BYTES
    return end_at_once(entry, 'stream_too_large', route_key)
  end
  if MAX_OPEN > 0 and used('streams') >= MAX_OPEN then
    entry.message = 'the tenant has ' .. MAX_OPEN .. ' open streams already, which is its limit'
    return end_at_once(entry, 'overloaded', route_key)
  end
  if MAX_OPEN_BYTES > 0 and used('bytes') + bytes > MAX_OPEN_BYTES then
    entry.message = 'the open streams of the tenant would have more than ' .. MAX_OPEN_BYTES .. ' bytes, its limit'
    return end_at_once(entry, 'overloaded', route_key)
  end
  local pod, incarnation, attempt, state = entry.pod, entry.incarnation, 1, 'open'
  local beat = room(pod, incarnation)
  if not beat then
    pod, incarnation, attempt, state = '', '', 0, 'held'
    if tonumber(write('ZCARD', HELD) or 0) >= MAX_HELD then
      entry.message = MAX_HELD .. ' streams of the tenant wait for a pod already'
      return end_at_once(entry, 'overloaded', route_key)
    end
  end
  local entries_key = PREFIX .. ':entries:' .. TENANT .. ':' .. entry.stream
  -- Of an earlier stream with this id nothing but leftovers can be here: its route has expired.
  redis.call('DEL', entries_key, PREFIX .. ':reply:' .. TENANT .. ':' .. entry.stream)
  fields[#fields + 1] = 'seq'
  fields[#fields + 1] = '1'
  fields[#fields + 1] = 'ingress_id'
  fields[#fields + 1] = entry.id
  redis.call('XADD', entries_key, '*', unpack(fields))
  redis.call('PEXPIRE', entries_key, LIVE_MS)
  redis.call('HSET', route_key, 'state', state, 'pod', pod, 'incarnation', incarnation, 'attempt', attempt, 'seq', 1,
    'digest', entry.digest, 'bytes', bytes, 'next_token', 0, 'open_id', entry.id, 'failures', 0,
    'fingerprint', beat and beat.fingerprint or '', 'model', entry.model, 'affinity', entry.affinity)
  redis.call('PEXPIRE', route_key, LIVE_MS)
  count('streams', 1)
  count('bytes', bytes)
  if state == 'held' then
    if write('ZADD', HELD, now_ms, entry.stream) then redis.call('PEXPIRE', HELD, LIVE_MS) end
    counts[ON_HOLD] = counts[ON_HOLD] + 1
  else
    local assigned = PREFIX .. ':assigned:' .. pod .. ':' .. incarnation
    if write('HSET', assigned, TENANT .. ':' .. entry.stream, 0) then redis.call('PEXPIRE', assigned, LIVE_MS) end
    local log = PREFIX .. ':log:' .. pod .. ':' .. incarnation
    if write('XADD', log, '*', 'op', 'adopt', 'tenant', TENANT, 'stream', entry.stream, 'attempt', attempt, 'upto', 1) then
      redis.call('PEXPIRE', log, LOG_LIVE_MS, 'NX')
    end
    counts[ASSIGNED] = counts[ASSIGNED] + 1
  end
  counts[FORWARDED] = counts[FORWARDED] + 1
end

-- Routes of open streams as they are in the middle of this batch, and the logs that were written to.
local open_routes, written_logs = {}, {}

local function write_route(stream)
  local route = open_routes[stream]
  if not route then return end
  open_routes[stream] = nil
  if route.changed then
    redis.call('HSET', route.key, 'seq', route.seq, 'bytes', string.format('%.0f', route.bytes))
    redis.call('PEXPIRE', route.key, LIVE_MS)
    redis.call('PEXPIRE', route.entries_key, LIVE_MS)
  end
end

local function remember(stream, route_key, route)
  route.key = route_key
  route.entries_key = PREFIX .. ':entries:' .. TENANT .. ':' .. stream
  route.log = route.pod ~= '' and PREFIX .. ':log:' .. route.pod .. ':' .. route.incarnation
  -- While a cluster moves the slot, a key may be at another node: found out here, before a write, it costs nothing.
  if route.log then
    redis.call('EXISTS', route_key, route.entries_key, USAGE, route.log)
  else
    redis.call('EXISTS', route_key, route.entries_key, USAGE)
  end
  open_routes[stream] = route
end

local function pass_on(entry, route, fields, bytes)
  local total = route.bytes + bytes
  if total > MAX_BYTES then
    entry.message = string.format('the stream would have %.0f bytes, it may have %.0f', total, MAX_BYTES)
    return tell_and_go_on(entry, 'stream_too_large', route.key)
  end
  if MAX_OPEN_BYTES > 0 and entry.op ~= 'cancel' and used('bytes') + bytes > MAX_OPEN_BYTES then
    entry.message = 'the open streams of the tenant would have more than ' .. MAX_OPEN_BYTES .. ' bytes, its limit'
    return tell_and_go_on(entry, 'overloaded', route.key)
  end
  local seq = route.seq + 1
  local n = #fields
  fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = 'seq', seq, 'ingress_id', entry.id
  if not write('XADD', route.entries_key, '*', unpack(fields)) then
    entry.message = 'the stream cannot be written to'
    return reject(entry, 'internal')
  end
  route.seq, route.bytes, route.changed = seq, total, true
  count('bytes', bytes)
  if entry.op == 'finish' then
    -- A held stream stays held; what it becomes with a pod is noted beside that.
    redis.call('HSET', route.key, route.pod == '' and 'finishing' or 'state', route.pod == '' and 1 or 'finishing')
  elseif entry.op == 'cancel' then
    -- Its pod may be gone without anybody knowing it yet; then no other one need begin.
    redis.call('HSET', route.key, 'cancelled', 1)
  end
  if route.log then
    n = n + 4
    fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = 'tenant', TENANT, 'attempt', route.attempt
    if write('XADD', route.log, '*', unpack(fields)) then written_logs[route.log] = true end
  end
  counts[FORWARDED] = counts[FORWARDED] + 1
end

local function place(entry, raw)
  if entry.stream == '' then return reject(entry, entry.code) end
  local route_key = PREFIX .. ':route:' .. TENANT .. ':' .. entry.stream
  local route = open_routes[entry.stream]
  if not route then
    local found = write('HMGET', route_key, 'state', 'pod', 'incarnation', 'attempt', 'seq', 'bytes', 'digest',
      'next_token')
    if not found then
      entry.message = 'the stream cannot be read'
      return reject(entry, 'internal')
    end
    route = {
      state = found[1], pod = found[2] or '', incarnation = found[3] or '', attempt = found[4] or '0',
      seq = tonumber(found[5] or '0'), bytes = tonumber(found[6] or '0'), digest = found[7] or '',
      next_token = found[8] or '0',
    }
  end
  local valid = entry.code == ''
  if not route.state then
    if entry.op ~= 'open' then
      if valid then entry.message = 'no stream of this id is open' end
      return reject(entry, valid and 'unknown_stream' or entry.code)
    end
    if not valid then return end_at_once(entry, entry.code, route_key) end
    local fields, bytes = known_fields(raw)
    return open(entry, route_key, fields, bytes)
  end
  local ended = route.state == 'ended'
  if not valid then
    if ended then return reject(entry, entry.code) end
    return tell_and_go_on(entry, entry.code, route_key)
  end
  if entry.op == 'open' then
    if entry.digest == route.digest then
      counts[IGNORED] = counts[IGNORED] + 1
      return
    end
    entry.message = 'a stream of this id was opened with other messages, params or options'
    if ended then return reject(entry, 'open_conflict') end
    return tell_and_go_on(entry, 'open_conflict', route_key)
  end
  if ended then
    if entry.op == 'finish' or entry.op == 'cancel' then
      counts[IGNORED] = counts[IGNORED] + 1
      return
    end
    entry.message = 'the stream has ended'
    return reject(entry, 'stream_ended')
  end
  if entry.op == 'cancel' and route.pod == '' then
    write_route(entry.stream)
    return cancel_held(entry, route_key, route)
  end
  if not route.key then remember(entry.stream, route_key, route) end
  local fields, bytes = known_fields(raw)
  pass_on(entry, route, fields, bytes)
end

local placed_ids = {}
local function write_batch()
  for stream in pairs(open_routes) do write_route(stream) end
  for log in pairs(written_logs) do redis.call('PEXPIRE', log, LOG_LIVE_MS, 'NX') end
  if #placed_ids > 0 then redis.call('XDEL', KEYS[2], unpack(placed_ids)) end
  count('taken', #placed_ids)
  write_usage()
end

for i = 1, N do
  local at = FIRST + (i - 1) * WIDTH
  local entry = ARGV[at + 3] == '' and { code = '', message = '', field = '' } or cjson.decode(ARGV[at + 3])
  entry.id, entry.op, entry.stream = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local placed, failure = pcall(place, entry, head[i][2])
  if not placed then
    write_batch()
    return type(failure) == 'table' and failure or redis.error_reply('ERR ' .. tostring(failure))
  end
  placed_ids[#placed_ids + 1] = entry.id
end
write_batch()
for _, code in ipairs(codes) do counts[#counts + 1] = code end
return counts
