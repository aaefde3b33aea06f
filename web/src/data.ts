// Answers to requests: embedded in a written page, or from the live server.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

export interface Array64 {
  shape: number[];
  dtype: "uint8" | "float32";
  data: string;
}

export type Params = Record<string, unknown>;

const embedded = JSON.parse(document.getElementById("answers")?.textContent || "{}") as {
  live?: boolean;
  start?: { text: string; target: string | null; models: string[] };
  answers?: Record<string, unknown>;
};
export const start = embedded.start ?? { text: "", target: null, models: [] };
export const isLive = embedded.live === true;
const token = new URLSearchParams(location.search).get("token") ?? "";
export const waiting = signal(0); // requests that the server has not answered

const kept = new Map<string, Promise<unknown>>();

/** The name of an answer, as look/requests.py computes it: parameters in order, without null. */
export function key(name: string, params: Params): string {
  const given = Object.fromEntries(
    Object.entries(params)
      .filter(([, value]) => value !== null && value !== undefined)
      .sort(([a], [b]) => (a < b ? -1 : 1)),
  );
  return `${name} ${JSON.stringify(given)}`;
}

export function isAvailable(name: string, params: Params): boolean {
  return isLive || key(name, params) in (embedded.answers ?? {});
}

/** The answer to a request. Rejects with an Error that can be shown. */
export function request<T>(name: string, params: Params): Promise<T> {
  const id = key(name, params);
  if (embedded.answers && id in embedded.answers) return Promise.resolve(embedded.answers[id] as T);
  if (!isLive) return Promise.reject(new Error("This file does not contain it. Open the model with `trifold look`."));
  let found = kept.get(id);
  if (!found) {
    found = send(name, params);
    found.catch(() => kept.delete(id));
    kept.set(id, found);
    if (kept.size > 200) kept.delete(kept.keys().next().value as string);
  }
  return found as Promise<T>;
}

async function send(name: string, params: Params): Promise<unknown> {
  waiting.value += 1;
  try {
    const body = key(name, params).slice(name.length + 1);
    const response = await fetch(`api/${name}`, { method: "POST", headers: { "X-Token": token }, body });
    const found = await response.json().catch(() => ({ error: `The server failed with status ${response.status}.` }));
    if (!response.ok) throw new Error(found.error);
    return found;
  } catch (error) {
    throw error instanceof TypeError ? new Error("The server does not answer. Start `trifold look` again.") : error;
  } finally {
    waiting.value -= 1;
  }
}

export interface Answer<T> {
  value?: T;
  error?: string;
}

/** What a value is about: it is never shown for another text or model. */
const subject = ({ text, target, model, lines }: Params) => JSON.stringify([text, target, model, lines]);

/** The answer to a request in a component. The former value of the same text stays until the new one is there, and beside
 * an error.
 */
export function useAnswer<T>(name: string, params: Params | null): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T> & { about?: string }>({});
  const id = params && key(name, params);
  const about = params ? subject(params) : "";
  useEffect(() => {
    if (!params) return;
    let isCurrent = true;
    request<T>(name, params).then(
      (value) => isCurrent && setAnswer({ value, about }),
      ({ message: error }: Error) => isCurrent && setAnswer((old) => ({ value: old.about === about ? old.value : undefined, error, about })),
    );
    return () => {
      isCurrent = false;
    };
  }, [id]);
  return answer.about === about ? answer : {};
}

const decoded = new WeakMap<Array64, Uint8Array | Float32Array>();

/** The numbers of an array; uint8 attention weights are 0 to 255. */
export function numbers(array: Array64): Uint8Array | Float32Array {
  let found = decoded.get(array);
  if (!found) {
    const text = atob(array.data);
    const bytes = new Uint8Array(text.length);
    for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
    found = array.dtype === "uint8" ? bytes : new Float32Array(bytes.buffer);
    decoded.set(array, found);
  }
  return found;
}
