-- Give a stream to a pod: one that is held, or one whose pod is gone or wants to leave. The new attempt fences whoever
-- had it before. Without a pod to give it to, take it from the one that is gone and hold it.
-- KEYS  lease  route  held
-- ARGV  epoch  prefix  tenant  stream  attempt  pod  incarnation  log_live_ms  last_failure  probation_ms
--   attempt        that the stream has now, as the router saw it
--   pod            '' to hold the stream
--   last_failure   number of failures after which one more ends a stream; a pod gets one such stream at a time
--   probation_ms   after which such a stream has shown that it does no harm
-- Returns the new attempt. Errors, with nothing done: FENCED: this router does not hold the lease. STALE: another
-- attempt has been made. ENDED: the stream has ended or is unknown. GONE: that incarnation of the pod is not there.
-- FULL: it has no room. OTHER_MODEL: the stream has sent tokens, and the pod's model is another. SUSPECT: the pod has a
-- stream on probation.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end
local prefix, tenant, stream, pod, incarnation = ARGV[2], ARGV[3], ARGV[4], ARGV[6], ARGV[7]
local member = tenant .. ':' .. stream
local route = redis.call('HMGET', KEYS[2], 'state', 'attempt', 'seq', 'finishing', 'pod', 'incarnation', 'next_token',
  'fingerprint', 'failures')
if not route[1] or route[1] == 'ended' then
  redis.call('ZREM', KEYS[3], stream)
  return redis.error_reply('ENDED')
end
if route[2] ~= ARGV[5] then return redis.error_reply('STALE') end
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local attempt = tonumber(route[2]) + 1

local function leave_pod()
  if route[5] and route[5] ~= '' then
    redis.call('HDEL', prefix .. ':assigned:' .. route[5] .. ':' .. route[6], member)
  end
end

if pod == '' then
  if route[1] == 'held' then return tonumber(route[2]) end
  leave_pod()
  if route[1] == 'finishing' then redis.call('HSET', KEYS[2], 'finishing', 1) end
  redis.call('HSET', KEYS[2], 'state', 'held', 'pod', '', 'incarnation', '', 'attempt', attempt)
  redis.call('ZADD', KEYS[3], now_ms, stream)
  return attempt
end

local readable, beat = pcall(cjson.decode, redis.call('HGET', prefix .. ':pods', pod))
if not readable or type(beat) ~= 'table' or beat.incarnation ~= incarnation then return redis.error_reply('GONE') end
local assigned = prefix .. ':assigned:' .. pod .. ':' .. incarnation
local capacity = type(beat.capacity) == 'table' and tonumber(beat.capacity.max_open_streams)
if capacity and redis.call('HLEN', assigned) >= capacity then return redis.error_reply('FULL') end
local sent = tonumber(route[7] or '0') > 0
local fingerprint = beat.fingerprint or ''
if sent and fingerprint ~= (route[8] or '') then return redis.error_reply('OTHER_MODEL') end
local failures = tonumber(route[9] or '0')
if failures >= tonumber(ARGV[9]) then
  for _, other in ipairs(redis.call('HVALS', assigned)) do
    local until_ms = tonumber(string.match(other, '^%d+ (%d+)$') or '0')
    if until_ms > tonumber(now_ms) then return redis.error_reply('SUSPECT') end
  end
end

local log = prefix .. ':log:' .. pod .. ':' .. incarnation
-- While a cluster moves the slot, a key may be at another node: found out before the first write, it costs nothing.
redis.call('EXISTS', log, assigned, KEYS[2], KEYS[3])
leave_pod()
redis.call('XADD', log, '*', 'op', 'adopt', 'tenant', tenant, 'stream', stream, 'attempt', attempt, 'upto', route[3])
redis.call('PEXPIRE', log, ARGV[8], 'NX')
local mark = tostring(failures)
if failures >= tonumber(ARGV[9]) then mark = string.format('%d %.0f', failures, tonumber(now_ms) + tonumber(ARGV[10])) end
redis.call('HSET', assigned, member, mark)
redis.call('PEXPIRE', assigned, redis.call('PTTL', KEYS[2]))
redis.call('HSET', KEYS[2], 'pod', pod, 'incarnation', incarnation, 'attempt', attempt, 'fingerprint', fingerprint)
if route[1] == 'held' then redis.call('HSET', KEYS[2], 'state', route[4] and 'finishing' or 'open') end
redis.call('ZREM', KEYS[3], stream)
return attempt
