-- Take a pod's incarnation off the list. Its log goes with it; streams that it still has are left to the routers.
-- KEYS  pods  log  incarnations  gone  assigned
-- ARGV  pod  incarnation  failed (1 if its engine has, 0 if it leaves by itself)  forgotten_ms
-- Returns 1 if the heartbeat was this incarnation's, 0 if another one has taken the name.
local mine = 0
local beat = redis.call('HGET', KEYS[1], ARGV[1])
if beat and string.find(beat, '"incarnation":"' .. ARGV[2] .. '"', 1, true) then
  redis.call('HDEL', KEYS[1], ARGV[1])
  mine = 1
end
local member = ARGV[1] .. ':' .. ARGV[2]
if redis.call('HLEN', KEYS[5]) > 0 then
  -- After a failure it stays among the incarnations, and the routers find who is to blame as for a pod that fell silent.
  if ARGV[3] ~= '1' then
    redis.call('SMOVE', KEYS[3], KEYS[4], member)
    redis.call('PEXPIRE', KEYS[4], ARGV[4])
  end
else
  redis.call('SREM', KEYS[3], member)
end
redis.call('DEL', KEYS[2])
return mine
