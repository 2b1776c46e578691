// What a person chose or dropped, as members of a folder: {name, kind: "file", size, file}.
const member = (name, file) => ({ name, kind: "file", size: file.size, file, open: async () => file });

export const ofInput = (list, folder = "") => [...list].map((file) => member(folder + (file.webkitRelativePath || file.name), file));

// Call it at once in the event's handler: after the first await the browser has forgotten what was dropped.
export function ofDrop(transfer) {
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const entries = items.map((item) => item.webkitGetAsEntry?.()), files = items.map((item) => item.getAsFile());
  const asked = items.map((item) => item.getAsFileSystemHandle?.()?.catch(() => null));
  return {
    handles: Promise.all(asked).then((found) => found.filter(Boolean)),
    members: (async () => {
      const found = [];
      for (const [i, entry] of entries.entries()) {
        if (entry) await walk(entry, "", found); else if (files[i]) found.push(member(files[i].name, files[i]));
      }
      return found;
    })(),
  };
}

async function walk(entry, under, found) {
  if (entry.isFile) {
    const file = await new Promise((done, failed) => entry.file(done, failed));
    found.push(member(under + entry.name, file));
    return;
  }
  const reader = entry.createReader();
  for (;;) {  // at most 100 at a time, none at the end
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return;
    for (const one of some) await walk(one, `${under}${entry.name}/`, found);
  }
}

// Of a handle that was kept, once the person allowed it again.
export async function ofHandles(handles) {
  const found = [];
  for (const handle of handles) await follow(handle, "", found);
  return found;
}

async function follow(handle, under, found) {
  if (handle.kind === "file") found.push(member(under + handle.name, await handle.getFile()));
  else for await (const one of handle.values()) await follow(one, `${under}${handle.name}/`, found);
}
