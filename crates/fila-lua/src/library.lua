-- The part of the library that is written in Lua, so that the hook interrupts its loops like those of a script.
--
-- It gets the stock functions and our own ones in Rust, and returns the functions that the VM calls. A script reaches
-- `base` and nothing else: not `stock`, not `ours`, and never a metatable that is in use.
local stock, ours = ...
local error, getmetatable, ipairs, next = stock.error, stock.getmetatable, stock.ipairs, stock.next
local pcall, rawget, rawset, select = stock.pcall, stock.rawget, stock.rawset, stock.select
local setmetatable, type = stock.setmetatable, stock.type
local concat, sub = ours.concat, stock.string.sub
local pack, unpack = stock.table.pack, stock.table.unpack

-- Tables that all calls share and that no script can change.
local locked = {}
local function lock(name, real)
  local front = setmetatable({}, {
    __index = real,
    __newindex = function() error("`" .. name .. "` cannot be changed", 2) end,
    __metatable = false,
  })
  locked[front] = name
  return front
end

local function choose(from, names)
  local chosen = {}
  for _, name in ipairs(names) do chosen[name] = from[name] end
  return chosen
end

local base = choose(stock, {
  "assert", "error", "ipairs", "next", "pairs", "rawequal", "rawget", "rawlen", "select", "tonumber", "type", "_VERSION",
})

-- Raises an error that ends the call again; the script handles the others.
local function settle(ok, ...)
  if ok then return true, ... end
  return false, ours.caught((...))
end

function base.pcall(...)
  return settle(pcall(...))
end

function base.rawset(subject, key, value)
  if locked[subject] then error("`" .. locked[subject] .. "` cannot be changed", 2) end
  return rawset(subject, key, value)
end

-- Metatables. Lua uses a copy that a script never sees, so that a script cannot add a refused field later.
local ORIGIN, GUARD = {}, {}
local refused = { __gc = true, __close = true, __mode = true, __len = true }
local known = {}
for _, name in ipairs {
  "__index", "__newindex", "__call", "__tostring", "__name", "__pairs", "__concat", "__eq", "__lt", "__le", "__unm",
  "__add", "__sub", "__mul", "__div", "__mod", "__pow", "__idiv", "__band", "__bor", "__bxor", "__bnot", "__shl", "__shr",
} do known[name] = true end

function base.setmetatable(subject, metatable)
  if type(subject) ~= "table" then
    error("bad argument #1 to 'setmetatable' (table expected, got " .. type(subject) .. ")", 2)
  end
  local present = getmetatable(subject)
  if present == false or present and rawget(present, GUARD) ~= nil then
    error("cannot change a protected metatable", 2)
  end
  if metatable == nil then return setmetatable(subject, nil) end
  if type(metatable) ~= "table" then error("bad argument #2 to 'setmetatable' (nil or table expected)", 2) end
  local copy = { [ORIGIN] = metatable, [GUARD] = rawget(metatable, "__metatable") }
  for key, value in next, metatable do
    if refused[key] then error("`" .. key .. "` is not available in hooks", 2) end
    -- Lua follows a chain of `__call` tables inside C, and moves all arguments at each step.
    if key == "__call" and type(value) ~= "function" then error("`__call` has to be a function", 2) end
    if known[key] then copy[key] = value end
  end
  return setmetatable(subject, copy)
end

function base.getmetatable(subject)
  local present = getmetatable(subject)
  if not present then return present end
  local guard = rawget(present, GUARD)
  if guard ~= nil then return guard end
  return rawget(present, ORIGIN)
end

-- Without addresses, which differ from run to run.
local function tostring(subject)
  local kind = type(subject)
  if kind ~= "table" and kind ~= "function" then return stock.tostring(subject) end
  local present = getmetatable(subject)
  if present then
    if rawget(present, "__tostring") ~= nil then return stock.tostring(subject) end
    local name = rawget(present, "__name")
    if type(name) == "string" then return name end
  end
  return kind
end
base.tostring = tostring

local text = choose(stock.string, { "byte", "char", "len", "lower", "reverse", "sub", "upper" })
text.find, text.match, text.gmatch, text.rep = ours.find, ours.match, ours.gmatch, ours.rep

function text.format(pattern, ...)
  ours.check_format(pattern)
  local values = pack(...)
  for index = 1, values.n do
    local kind = type(values[index])
    if kind == "table" or kind == "function" then values[index] = tostring(values[index]) end
  end
  return stock.string.format(pattern, unpack(values, 1, values.n))
end

local function substitute(subject, pattern, replacement, captures, limit)
  local parts, length, count, from, last = {}, 0, 0, 1, 0
  local function replace(start, past, ...)
    if not start then return false end
    count = count + 1
    local value = replacement(...)
    local kind = type(value)
    if not value then
      value = sub(subject, start, past - 1)
    elseif kind ~= "string" and kind ~= "number" then
      error("invalid replacement value (a " .. kind .. ")", 4)
    end
    parts[length + 1] = sub(subject, from, start - 1)
    parts[length + 2] = value
    length, from, last = length + 2, past, past
    return true
  end
  while count < limit and replace(ours.scan(subject, pattern, from, last, captures)) do end
  parts[length + 1] = sub(subject, from)
  return concat(parts), count
end

function text.gsub(subject, pattern, replacement, limit)
  local kind = type(replacement)
  if kind == "string" or kind == "number" then return ours.gsub(subject, pattern, replacement, limit) end
  -- Convert to a whole number and to a string, or raise an error.
  if limit == nil then limit = stock.math.maxinteger else limit = ours.integer(limit) end
  subject = ours.text(subject)
  if kind == "function" then return substitute(subject, pattern, replacement, 32, limit) end
  if kind == "table" then
    return substitute(subject, pattern, function(key) return replacement[key] end, 1, limit)
  end
  error("bad argument #3 to 'gsub' (string/function/table expected, got " .. kind .. ")", 2)
end

local list = { concat = concat, pack = pack, unpack = unpack }

local function check_table(subject, name)
  local kind = type(subject)
  if kind ~= "table" then error("bad argument #1 to '" .. name .. "' (table expected, got " .. kind .. ")", 3) end
end

function list.insert(subject, ...)
  check_table(subject, "insert")
  local given, last = select("#", ...), #subject + 1
  if given == 1 then
    subject[last] = (...)
    return
  end
  if given ~= 2 then error("wrong number of arguments to 'insert'", 2) end
  local place, value = ...
  place = ours.integer(place)
  if place < 1 or place > last then error("bad argument #2 to 'insert' (position out of bounds)", 2) end
  for index = last, place + 1, -1 do subject[index] = subject[index - 1] end
  subject[place] = value
end

function list.remove(subject, place)
  check_table(subject, "remove")
  local size = #subject
  if place == nil then
    place = size
  else
    place = ours.integer(place)
    if place ~= size and (place < 1 or place > size + 1) then
      error("bad argument #2 to 'remove' (position out of bounds)", 2)
    end
  end
  local removed = subject[place]
  while place < size do
    subject[place] = subject[place + 1]
    place = place + 1
  end
  subject[place] = nil
  return removed
end

-- Heapsort: no recursion, and an inconsistent order costs no more than a consistent one.
function list.sort(subject, less)
  check_table(subject, "sort")
  if less == nil then
    less = function(a, b) return a < b end
  elseif type(less) ~= "function" then
    error("bad argument #2 to 'sort' (function expected, got " .. type(less) .. ")", 2)
  end
  local function sink(value, hole, size)
    while true do
      local child = 2 * hole
      if child > size then break end
      local largest = subject[child]
      if child < size then
        local right = subject[child + 1]
        if less(largest, right) then child, largest = child + 1, right end
      end
      if not less(value, largest) then break end
      subject[hole] = largest
      hole = child
    end
    subject[hole] = value
  end
  local size = #subject
  for root = size // 2, 1, -1 do sink(subject[root], root, size) end
  for last = size, 2, -1 do
    local value = subject[last]
    subject[last] = subject[1]
    sink(value, 1, last - 1)
  end
end

local numbers = {}
for name, value in next, stock.math do
  if name ~= "randomseed" then numbers[name] = value end
end

base.string, base.table = lock("string", text), lock("table", list)
base.math, base.utf8 = lock("math", numbers), lock("utf8", stock.utf8)
base.fila = lock("fila", { get = ours.get })

-- Methods of strings. Arithmetic on strings that look like numbers stays.
local methods = getmetatable("")
methods.__index, methods.__metatable = text, false

-- Each call loads the script: globals, locals and tables of the top level are new.
local environment = { __index = base, __metatable = false }
local function load(script)
  local globals = setmetatable({}, environment)
  globals._G = globals
  script(globals)
  return globals
end

local function defines(script)
  local globals = load(script)
  return type(rawget(globals, "on_enqueue")) == "function", type(rawget(globals, "on_failure")) == "function"
end

-- The hooks return the type of the answer and its raw fields. `base` has no hooks, so `load(script).on_enqueue` finds only
-- the script's own. Each call into C costs a check of the clock, so there are few.
local function on_enqueue(script, headers, payload_size, queue)
  local hook = load(script).on_enqueue
  if not hook then return "missing" end
  local answer = hook { headers = headers, payload_size = payload_size, queue = queue }
  local kind = type(answer)
  if kind ~= "table" then return kind end
  if getmetatable(answer) == nil then
    return kind, answer.fairness_key, answer.weight, answer.throttle_keys, answer.weights
  end
  return kind, rawget(answer, "fairness_key"), rawget(answer, "weight"), rawget(answer, "throttle_keys"),
    rawget(answer, "weights")
end

local function on_failure(script, headers, id, attempts, queue, reason)
  local hook = load(script).on_failure
  if not hook then return "missing" end
  local answer = hook { headers = headers, id = id, attempts = attempts, queue = queue, error = reason }
  local kind = type(answer)
  if kind ~= "table" then return kind end
  if getmetatable(answer) == nil then return kind, answer.action, answer.delay_ms end
  return kind, rawget(answer, "action"), rawget(answer, "delay_ms")
end

return defines, on_enqueue, on_failure
