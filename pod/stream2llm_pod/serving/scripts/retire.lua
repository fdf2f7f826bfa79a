-- Take a pod's incarnation off the list and drop its log.
-- KEYS  pods  log
-- ARGV  pod  incarnation
-- Returns 1 if the heartbeat was this incarnation's, 0 if another one has taken the name.
local mine = 0
local beat = redis.call('HGET', KEYS[1], ARGV[1])
if beat and string.find(beat, '"incarnation":"' .. ARGV[2] .. '"', 1, true) then
  redis.call('HDEL', KEYS[1], ARGV[1])
  mine = 1
end
redis.call('DEL', KEYS[2])
return mine
