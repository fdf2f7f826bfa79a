-- Write one checked entry to ingress, unless it is known already that it would be turned away.
-- KEYS  ingress  route
-- ARGV  op  digest (of an open, else '')  { field  value }*
-- Returns { code, ingress id }. The code is '' if all is well; the id is '' if there was nothing to write.
-- Forwarding moves an entry and writes its route in one step, so a stream without a route and with nothing in ingress
-- was never opened. While ingress holds entries that cannot be told, and the router will say it in `rejected`.
local op, digest = ARGV[1], ARGV[2]
local route = redis.call('HMGET', KEYS[2], 'state', 'digest')
local state = route[1]
if not state then
  if op ~= 'open' and redis.call('XLEN', KEYS[1]) == 0 then return { 'unknown_stream', '' } end
elseif op == 'open' then
  if route[2] ~= digest then return { 'open_conflict', '' } end
  return { '', '' }
elseif state == 'ended' then
  if op == 'finish' or op == 'cancel' then return { '', '' } end
  return { 'stream_ended', '' }
end
return { '', redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3)) }
