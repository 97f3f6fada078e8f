// A whole story by the JavaScript SDK (box-node-sdk 10), told as JSON; its test runs it behind the proxy.
const { BoxClient, BoxDeveloperTokenAuth } = require("box-node-sdk");
const { Readable } = require("stream");
const crypto = require("crypto");

const told = {};
const text = async (stream) => Buffer.concat(await stream.toArray()).toString();
const main = async () => {
  const auth = new BoxDeveloperTokenAuth({ token: process.env.BOX_TOKEN });
  const client = new BoxClient({ auth }).withProxy({ url: process.env.HTTPS_PROXY });
  const folder = await client.folders.createFolder({ name: "from js", parent: { id: "0" } });
  const made = await client.uploads.uploadFile({
    attributes: { name: "a.txt", parent: { id: folder.id } }, file: Readable.from([Buffer.from("hello")]),
  });
  const file = made.entries[0];
  told.first = await text(await client.downloads.downloadFile(file.id));
  await client.uploads.uploadFileVersion(file.id, { attributes: { name: "a.txt" }, file: Readable.from([Buffer.from("hello again")]) });
  told.second = await text(await client.downloads.downloadFile(file.id));
  told.part = await text(await client.downloads.downloadFile(file.id, { headers: { range: "bytes=6-" } }));
  const copy = await client.files.copyFile(file.id, { parent: { id: "0" }, name: "b.txt" });
  await client.files.updateFileById(copy.id, { requestBody: { name: "c.txt", parent: { id: folder.id } } });
  const items = await client.folders.getFolderItems(folder.id, { queryParams: { usemarker: true, limit: 1 } });
  const rest = await client.folders.getFolderItems(folder.id, { queryParams: { usemarker: true, marker: items.nextMarker } });
  told.names = [...items.entries, ...rest.entries].map((item) => item.name);
  const shared = await client.sharedLinksFiles.addShareLinkToFile(file.id, { sharedLink: {} }, { fields: "shared_link" });
  told.link = shared.sharedLink.url;
  const data = crypto.randomBytes(21 * 1024 * 1024);
  const big = await client.chunkedUploads.uploadBigFile(Readable.from([data]), "big", data.length, folder.id);
  told.same = big.sha1 === crypto.createHash("sha1").update(data).digest("hex");
  await client.files.deleteFileById(file.id);
  told.trash = (await client.trashedItems.getTrashedItems()).entries.map((item) => item.name);
  await client.folders.deleteFolderById(folder.id, { queryParams: { recursive: true } });
  told.left = (await client.folders.getFolderItems("0")).entries.length;
  told.user = (await client.users.getUserMe()).login;
  told.missing = await client.files.getFileById("4711").catch((error) => error.responseInfo.statusCode);
  process.stdout.write(JSON.stringify(told));
};
main().catch((error) => { console.error(error); process.exit(1); });
