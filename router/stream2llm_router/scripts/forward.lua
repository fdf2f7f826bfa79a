-- Move the head of one tenant's ingress to its streams: entries, pod logs, replies, rejected.
-- KEYS  lease  ingress
-- ARGV  epoch  prefix  tenant  retain_ms  live_ms  max_stream_bytes  max_rejected  then for each entry, in order:
--       id  op  stream  bytes  digest  pod  incarnation  code  message  field
--       op is '' if the router refused the entry (code says why); stream is '' if it is unreadable.
-- FENCED: the lease is another's. STALE: the head is not what was read; a retry met its own success.
-- Returns the number of entries passed on, then a word for each one that was not.
-- Scripts do not roll back, so each entry leaves the ingress right after it has been written, and nothing that depends
-- on a tenant's data can raise: known fields only, their number bounded.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end
local prefix, tenant, retain_ms, live_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local max_stream_bytes, max_rejected = tonumber(ARGV[6]), ARGV[7]
local FIRST, WIDTH = 8, 10
local KNOWN = {
  stream = 1, op = 1, messages = 1, prompt = 1, params = 1, options = 1, text = 1, tokens = 1, chunk = 1,
  context = 1, version = 1, expect = 1,
}
local count = (#ARGV - FIRST + 1) / WIDTH
local head = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', count)
local moved, refused = 0, {}

local function error_data(code, message, field, terminal, id)
  return cjson.encode({
    code = code, message = message, field = field ~= '' and field or cjson.null, terminal = terminal, ingress_id = id,
  })
end

local function reject(code, message, field, stream, id)
  redis.call('XADD', prefix .. ':rejected:' .. tenant, 'MAXLEN', '~', max_rejected, '*', 'code', code,
    'message', message, 'field', field, 'stream', stream, 'ingress_id', id)
  refused[#refused + 1] = code
end

local function tell(stream, code, message, field, terminal, id)
  local reply = prefix .. ':reply:' .. tenant .. ':' .. stream
  redis.call('XADD', reply, '*', 'event', 'error', 'data', error_data(code, message, field, terminal, id))
  redis.call('PEXPIRE', reply, terminal and retain_ms or live_ms)
  refused[#refused + 1] = code
end

local function known_fields(raw)
  local values, fields = {}, {}
  for j = 1, #raw, 2 do
    if KNOWN[raw[j]] then values[raw[j]] = raw[j + 1] end
  end
  for name, value in pairs(values) do
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  return fields
end

local function pass_on(stream, route, raw, id, to_log)
  local seq = redis.call('HINCRBY', route, 'seq', 1)
  local fields = known_fields(raw)
  for _, extra in ipairs({ 'seq', seq, 'ingress_id', id }) do fields[#fields + 1] = extra end
  local entries = prefix .. ':entries:' .. tenant .. ':' .. stream
  redis.call('XADD', entries, '*', unpack(fields))
  redis.call('PEXPIRE', entries, live_ms)
  redis.call('PEXPIRE', route, live_ms)
  if to_log then
    for _, extra in ipairs({ 'tenant', tenant, 'attempt', to_log[3] }) do fields[#fields + 1] = extra end
    redis.call('XADD', prefix .. ':log:' .. to_log[1] .. ':' .. to_log[2], '*', unpack(fields))
  end
  moved = moved + 1
end

local function open(stream, route, state, raw, id, a)
  if not state then
    local pod, incarnation = ARGV[a + 5], ARGV[a + 6]
    local held = pod == ''
    redis.call('HSET', route, 'state', held and 'held' or 'open', 'pod', pod, 'incarnation', incarnation,
      'attempt', held and 0 or 1, 'seq', 0, 'digest', ARGV[a + 4], 'bytes', ARGV[a + 3], 'next_token', 0,
      'opened_ms', string.match(id, '^%d+'), 'retain_ms', retain_ms)
    pass_on(stream, route, raw, id, nil)
    if held then
      refused[#refused + 1] = 'held'
    else
      local log = prefix .. ':log:' .. pod .. ':' .. incarnation
      redis.call('XADD', log, '*', 'op', 'adopt', 'tenant', tenant, 'stream', stream, 'attempt', 1, 'upto', 1)
    end
  elseif redis.call('HGET', route, 'digest') == ARGV[a + 4] then
    refused[#refused + 1] = 'repeated'
  elseif state == 'ended' then
    reject('open_conflict', 'the stream id is taken by another open that has ended', 'stream', stream, id)
  else
    tell(stream, 'open_conflict', 'the stream is open already, with another open', 'stream', false, id)
  end
end

local function follow(stream, route, state, raw, id, a, op)
  if not state then
    return reject('unknown_stream', 'no open of this stream has been seen', 'stream', stream, id)
  end
  if state == 'ended' then
    if op == 'finish' or op == 'cancel' then
      refused[#refused + 1] = 'repeated'
      return nil
    end
    return reject('stream_ended', 'the stream has ended', 'stream', stream, id)
  end
  local bytes = tonumber(redis.call('HGET', route, 'bytes')) + tonumber(ARGV[a + 3])
  if bytes > max_stream_bytes then
    return tell(stream, 'stream_too_large',
      string.format('the stream would have %d bytes, limit %d', bytes, max_stream_bytes), '', false, id)
  end
  redis.call('HSET', route, 'bytes', bytes)
  if op == 'finish' then
    redis.call('HSET', route, 'finishing', 1)
    if state == 'open' then redis.call('HSET', route, 'state', 'finishing') end
  end
  local target = redis.call('HMGET', route, 'pod', 'incarnation', 'attempt')
  return pass_on(stream, route, raw, id, state ~= 'held' and target or nil)
end

for i = 1, count do
  local a = FIRST + (i - 1) * WIDTH
  local entry = head[i]
  if not entry or entry[1] ~= ARGV[a] then return redis.error_reply('STALE') end
  local id, op, stream = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  local code, message, field = ARGV[a + 7], ARGV[a + 8], ARGV[a + 9]
  if stream == '' then
    reject(code, message, field, '', id)
  else
    local route = prefix .. ':route:' .. tenant .. ':' .. stream
    local state = redis.call('HGET', route, 'state')
    if op == 'open' then
      open(stream, route, state, entry[2], id, a)
    elseif op ~= '' then
      follow(stream, route, state, entry[2], id, a, op)
    elseif state == 'ended' then
      reject(code, message, field, stream, id)
    elseif state then
      tell(stream, code, message, field, false, id)
    elseif field == 'op' or ARGV[a + 4] ~= 'open' then
      reject(code, message, field, stream, id)
    else
      -- Somebody waits for the reply of this open: tell there that it failed, and keep the id taken as after any end.
      redis.call('HSET', route, 'state', 'ended', 'attempt', 0, 'seq', 0, 'digest', '', 'bytes', 0, 'next_token', 0,
        'opened_ms', string.match(id, '^%d+'), 'retain_ms', retain_ms)
      redis.call('PEXPIRE', route, retain_ms)
      tell(stream, code, message, field, true, id)
    end
  end
  redis.call('XDEL', KEYS[2], id)
end
table.insert(refused, 1, moved)
return refused
