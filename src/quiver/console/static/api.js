// The node's own HTTP interface, with the token of whoever signed in.

const TOKEN = "quiver.token";

export class Refused extends Error {
  constructor(status, told) {
    super(told.detail || told.title || `The node answered with status ${status}.`);
    this.status = status;
    this.code = told.code;
    this.field = told.field;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  clear: () => sessionStorage.removeItem(TOKEN),
};

export async function call(method, path, body) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let reply;
  try {
    reply = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Refused(0, { detail: "The node does not answer." });
  }
  const told = reply.status === 204 ? null : await reply.json().catch(() => ({}));
  if (!reply.ok) {
    if (reply.status === 401) dispatchEvent(new Event("quiver:unknown"));
    throw new Refused(reply.status, told || {});
  }
  return told;
}

export const get = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return call("GET", text ? `${path}?${text}` : path);
};

export const part = encodeURIComponent;
