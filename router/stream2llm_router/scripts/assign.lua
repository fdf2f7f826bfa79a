-- Give a stream to a pod: one that is held, or one whose pod is gone. The new attempt fences whoever had it before.
-- KEYS  lease  route  held
-- ARGV  epoch  prefix  tenant  stream  expected_attempt  pod  incarnation  log_live_ms
-- Returns the new attempt. FENCED: this router does not hold the lease. STALE: another attempt has been made.
-- ENDED: the stream has ended or is unknown; it is not held any more. GONE: that incarnation of the pod is not there.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end
local prefix, tenant, stream, pod, incarnation = ARGV[2], ARGV[3], ARGV[4], ARGV[6], ARGV[7]
local route = redis.call('HMGET', KEYS[2], 'state', 'attempt', 'seq', 'finishing')
if not route[1] or route[1] == 'ended' then
  redis.call('ZREM', KEYS[3], stream)
  return redis.error_reply('ENDED')
end
if route[2] ~= ARGV[5] then
  if ARGV[5] == '0' then redis.call('ZREM', KEYS[3], stream) end
  return redis.error_reply('STALE')
end
local readable, beat = pcall(cjson.decode, redis.call('HGET', prefix .. ':pods', pod))
if not readable or type(beat) ~= 'table' or beat.incarnation ~= incarnation then return redis.error_reply('GONE') end

local attempt = tonumber(route[2]) + 1
local log = prefix .. ':log:' .. pod .. ':' .. incarnation
redis.call('XADD', log, '*', 'op', 'adopt', 'tenant', tenant, 'stream', stream, 'attempt', attempt, 'upto', route[3])
redis.call('PEXPIRE', log, ARGV[8], 'NX')
redis.call('HSET', KEYS[2], 'pod', pod, 'incarnation', incarnation, 'attempt', attempt)
if route[1] == 'held' then redis.call('HSET', KEYS[2], 'state', route[4] and 'finishing' or 'open') end
redis.call('ZREM', KEYS[3], stream)
return attempt
