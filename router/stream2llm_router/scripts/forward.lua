-- Move the head of one tenant's ingress to where each entry belongs, in order, and delete it from ingress beside that.
-- KEYS  lease  ingress
-- ARGV  epoch  prefix  tenant  retain_ms  live_ms  log_live_ms  max_stream_bytes  max_held  max_rejected  max_told  n
--       { id  op  stream  digest  pod  incarnation  code  message  field }*
--   live_ms       how long the keys of a stream live untouched
--   max_told      errors that one reply may hold; what is wrong beyond that is told in `rejected`
--   op            the entry's op as the router understood it
--   stream        its stream id, '' if it has none that can be read
--   digest        of a valid open
--   pod, incarnation   where the router would put a valid open; '' if no pod has room
--   code, message, field   what is wrong with the entry; code is '' for a valid one
-- Returns { forwarded, assigned, held, ignored, code, code, … }: counts, then the code of every entry turned away.
-- FENCED: this router does not hold the lease. STALE: the head of ingress is not what was read. Both: nothing done.
--
-- Nothing here is rolled back when a call fails, so each entry's writes are ordered such that only the first of them
-- can fail for a reason (memory, a foreign key type) that the entry or its stream brings along.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end

local PREFIX, TENANT, RETAIN_MS, LIVE_MS, LOG_LIVE_MS = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local MAX_BYTES, MAX_HELD, MAX_REJECTED, MAX_TOLD = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])
local N, FIRST, WIDTH = tonumber(ARGV[11]), 12, 9
local KNOWN = {
  'stream', 'op', 'messages', 'prompt', 'params', 'options', 'text', 'tokens', 'chunk', 'context', 'version', 'expect',
}
local IS_KNOWN = {}
for _, name in ipairs(KNOWN) do IS_KNOWN[name] = true end
local HELD = PREFIX .. ':held:' .. TENANT
local REJECTED = PREFIX .. ':rejected:' .. TENANT

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

-- The pod may have gone since the router looked: its log would have no reader.
local pods = {}
local function has_incarnation(pod, incarnation)
  local name = pod .. ' ' .. incarnation
  if pods[name] == nil then
    local beat = redis.pcall('HGET', PREFIX .. ':pods', pod)
    local readable, value = pcall(cjson.decode, beat)
    pods[name] = readable and type(value) == 'table' and value.incarnation == incarnation
  end
  return pods[name]
end

local function known_fields(raw)
  local values, bytes, fields = {}, 0, {}
  for j = 1, #raw, 2 do
    -- Of a field that is there twice the last counts, as in the mapping that the router judged.
    if IS_KNOWN[raw[j]] then values[raw[j]] = raw[j + 1] end
  end
  for _, name in ipairs(KNOWN) do
    if values[name] then
      fields[#fields + 1] = name
      fields[#fields + 1] = values[name]
      bytes = bytes + #values[name]
    end
  end
  return fields, bytes
end

local function end_at_once(entry, code, route_key)
  redis.call('DEL', route_key, PREFIX .. ':entries:' .. TENANT .. ':' .. entry.stream,
    PREFIX .. ':reply:' .. TENANT .. ':' .. entry.stream)
  tell(entry, code, true)
  redis.call('HSET', route_key, 'state', 'ended', 'pod', '', 'incarnation', '', 'attempt', 0, 'seq', 0,
    'digest', entry.digest, 'bytes', 0, 'next_token', 0, 'opened_ms', entry.arrival_ms, 'retain_ms', RETAIN_MS)
  redis.call('PEXPIRE', route_key, RETAIN_MS)
end

local function open(entry, route_key, fields, bytes)
  if bytes > MAX_BYTES then
    entry.message = 'the open has ' .. bytes .. ' bytes, a stream may have ' .. MAX_BYTES
    return end_at_once(entry, 'stream_too_large', route_key)
  end
  local pod, incarnation, attempt, state = entry.pod, entry.incarnation, 1, 'open'
  if pod == '' or not has_incarnation(pod, incarnation) then
    pod, incarnation, attempt, state = '', '', 0, 'held'
    if tonumber(write('ZCARD', HELD) or 0) >= MAX_HELD then
      entry.message = 'no pod has room, and ' .. MAX_HELD .. ' streams wait already'
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
    'digest', entry.digest, 'bytes', bytes, 'next_token', 0, 'opened_ms', entry.arrival_ms, 'retain_ms', RETAIN_MS)
  redis.call('PEXPIRE', route_key, LIVE_MS)
  if state == 'held' then
    if write('ZADD', HELD, now_ms, entry.stream) then redis.call('PEXPIRE', HELD, LIVE_MS) end
    counts[ON_HOLD] = counts[ON_HOLD] + 1
  else
    local log = PREFIX .. ':log:' .. pod .. ':' .. incarnation
    if write('XADD', log, '*', 'op', 'adopt', 'tenant', TENANT, 'stream', entry.stream, 'attempt', attempt, 'upto', 1) then
      redis.call('PEXPIRE', log, LOG_LIVE_MS, 'NX')
    end
    counts[ASSIGNED] = counts[ASSIGNED] + 1
  end
  counts[FORWARDED] = counts[FORWARDED] + 1
end

local function pass_on(entry, route_key, route, fields, bytes)
  local total = tonumber(route.bytes) + bytes
  if total > MAX_BYTES then
    entry.message = 'the stream would have ' .. total .. ' bytes, it may have ' .. MAX_BYTES
    return tell_and_go_on(entry, 'stream_too_large', route_key)
  end
  local entries_key = PREFIX .. ':entries:' .. TENANT .. ':' .. entry.stream
  local seq = tonumber(route.seq) + 1
  fields[#fields + 1] = 'seq'
  fields[#fields + 1] = seq
  fields[#fields + 1] = 'ingress_id'
  fields[#fields + 1] = entry.id
  if not write('XADD', entries_key, '*', unpack(fields)) then
    entry.message = 'the stream cannot be written to'
    return reject(entry, 'internal')
  end
  redis.call('PEXPIRE', entries_key, LIVE_MS)
  redis.call('HSET', route_key, 'seq', seq, 'bytes', total)
  if entry.op == 'finish' then
    -- A held stream stays held; what it becomes with a pod is noted beside that.
    redis.call('HSET', route_key, route.pod == '' and 'finishing' or 'state', route.pod == '' and 1 or 'finishing')
  end
  redis.call('PEXPIRE', route_key, LIVE_MS)
  if route.pod ~= '' then
    local log = PREFIX .. ':log:' .. route.pod .. ':' .. route.incarnation
    for _, value in ipairs({ 'tenant', TENANT, 'attempt', route.attempt }) do fields[#fields + 1] = value end
    if write('XADD', log, '*', unpack(fields)) then redis.call('PEXPIRE', log, LOG_LIVE_MS, 'NX') end
  end
  counts[FORWARDED] = counts[FORWARDED] + 1
end

local function place(entry, raw)
  if entry.stream == '' then return reject(entry, entry.code) end
  local route_key = PREFIX .. ':route:' .. TENANT .. ':' .. entry.stream
  local found = write('HMGET', route_key, 'state', 'pod', 'incarnation', 'attempt', 'seq', 'bytes', 'digest')
  if not found then
    entry.message = 'the stream cannot be read'
    return reject(entry, 'internal')
  end
  local route = {
    state = found[1], pod = found[2] or '', incarnation = found[3] or '', attempt = found[4] or '0',
    seq = found[5] or '0', bytes = found[6] or '0', digest = found[7] or '',
  }
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
  local fields, bytes = known_fields(raw)
  pass_on(entry, route_key, route, fields, bytes)
end

for i = 1, N do
  local at = FIRST + (i - 1) * WIDTH
  local entry = {
    id = ARGV[at], op = ARGV[at + 1], stream = ARGV[at + 2], digest = ARGV[at + 3], pod = ARGV[at + 4],
    incarnation = ARGV[at + 5], code = ARGV[at + 6], message = ARGV[at + 7], field = ARGV[at + 8],
    arrival_ms = string.match(ARGV[at], '^%d+'),
  }
  place(entry, head[i][2])
  redis.call('XDEL', KEYS[2], entry.id)
end
for _, code in ipairs(codes) do counts[#counts + 1] = code end
return counts
