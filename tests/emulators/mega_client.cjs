// A session of megajs: node mega_client.cjs GATEWAY EMAIL PASSWORD; prints one JSON object.
const { File, Storage, API } = require('megajs')

async function main (gateway, email, password) {
  const options = { email, password, gateway, userAgent: null }
  const names = storage => Object.values(storage.files).filter(file => file.type < 2)
    .map(file => `${file.parent.name}/${file.name}`).sort()
  const found = {}
  const storage = await new Storage({ ...options }).ready
  found.user = storage.name
  const folder = await storage.mkdir('földer')
  const other = await storage.mkdir('other')
  const data = Buffer.from(Array.from({ length: 700001 }, (_, place) => place % 251))
  const file = await folder.upload({ name: 'a.bin' }, Buffer.from(data)).complete // it encrypts in place
  found.same = (await file.downloadBuffer()).equals(data)
  found.range = (await file.downloadBuffer({ start: 100, end: 199 })).equals(data.subarray(100, 200))
  await file.moveTo(other)
  await file.rename('b.bin')
  const empty = await other.upload({ name: 'empty' }, Buffer.alloc(0)).complete
  found.empty = empty.size
  const space = await storage.getAccountInfo()
  found.space = [space.spaceUsed, space.spaceTotal > space.spaceUsed]

  const api = API.getGlobalApi() // what is in a shared folder asks no other one
  api.gateway = gateway
  const opened = File.fromURL(await file.link(), { api })
  await opened.loadAttributes()
  found.linked = [opened.name, (await opened.downloadBuffer()).equals(data)]
  const shared = File.fromURL(await other.link(), { api })
  await shared.loadAttributes()
  found.shared = shared.children.map(child => child.name).sort()
  found.sharedContent = (await shared.children.find(child => child.name === 'b.bin').downloadBuffer()).equals(data)

  const again = await new Storage({ ...options, keepalive: false }).ready
  found.listed = names(again)
  await file.delete(true)
  await folder.delete() // into the rubbish bin
  await again.reload(true)
  const last = await new Storage({ ...options, keepalive: false }).ready
  found.left = names(last)
  const session = last.toJSON()
  await last.close()
  found.closed = await Storage.fromJSON(session).api.request({ a: 'f', c: 1 }).then(() => 'open', error => error.message)
  await again.close()
  await storage.close()
  console.log(JSON.stringify(found))
}

main(...process.argv.slice(2)).catch(error => {
  console.error(error)
  process.exit(1)
})
