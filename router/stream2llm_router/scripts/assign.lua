-- Give a stream to a pod: the first time after it was held, or again when its pod is gone.
-- KEYS  lease  route
-- ARGV  epoch  prefix  tenant  stream  expected_attempt  pod  incarnation
-- FENCED: the lease is another's. STALE: the attempt is not the expected one. ENDED: there is nothing to assign.
-- Returns the new attempt. The pod reads the entries up to `upto` and takes later ones from its log.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end
local route = redis.call('HMGET', KEYS[2], 'state', 'attempt', 'seq', 'finishing')
if not route[1] or route[1] == 'ended' then return redis.error_reply('ENDED') end
if route[2] ~= ARGV[5] then return redis.error_reply('STALE') end
local attempt = tonumber(route[2]) + 1
redis.call('HSET', KEYS[2], 'state', route[4] and 'finishing' or 'open', 'pod', ARGV[6], 'incarnation', ARGV[7],
  'attempt', attempt)
redis.call('XADD', ARGV[2] .. ':log:' .. ARGV[6] .. ':' .. ARGV[7], '*', 'op', 'adopt', 'tenant', ARGV[3],
  'stream', ARGV[4], 'attempt', attempt, 'upto', route[3])
return attempt
