// Answers to requests: embedded in a written page, or from the live server.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

export interface Array64 {
  shape: number[];
  dtype: "uint8" | "float32" | "float16";
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

const MOST_KEPT = 2 ** 29; // bytes of answers of the server
const kept = new Map<string, { answer: Promise<unknown>; size: number }>();

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
    const sent = send(name, params);
    found = { answer: sent.then(([answer]) => answer), size: 0 };
    kept.set(id, found);
    sent.then(([, size]) => keep(id, size), () => kept.delete(id));
  }
  return found.answer as Promise<T>;
}

/** Note the size of an answer, and forget the oldest others beyond MOST_KEPT. */
function keep(id: string, size: number): void {
  const own = kept.get(id);
  if (own) own.size = size;
  let total = 0;
  for (const each of kept.values()) total += each.size;
  for (const [other, each] of kept) {
    if (total <= MOST_KEPT) return;
    if (other === id) continue;
    kept.delete(other);
    total -= each.size;
  }
}

/** The answer of the server and its number of characters. */
async function send(name: string, params: Params): Promise<[unknown, number]> {
  waiting.value += 1;
  try {
    const body = key(name, params).slice(name.length + 1);
    const response = await fetch(`api/${name}`, { method: "POST", headers: { "X-Token": token }, body });
    const content = await response.text();
    const found = parse(content) ?? { error: `The server failed with status ${response.status}.` };
    if (!response.ok) throw new Error((found as { error: string }).error);
    return [found, content.length];
  } catch (error) {
    throw error instanceof TypeError ? new Error("The server does not answer. Start `trifold look` again.") : error;
  } finally {
    waiting.value -= 1;
  }
}

function parse(content: string): unknown {
  try {
    return JSON.parse(content);
  } catch {
    return null;
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

/** The numbers of float16, sign · mantissa · 2^exponent, as float32; older browsers have no Float16Array. */
function widen(halves: Uint16Array): Float32Array {
  return Float32Array.from(halves, (bits) => {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const size = exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24;
    return bits >> 15 ? -size : size;
  });
}

/** The numbers of an array. */
export function numbers(array: Array64): Uint8Array | Float32Array {
  let found = decoded.get(array);
  if (!found) {
    const text = atob(array.data);
    const bytes = new Uint8Array(text.length);
    for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
    found = array.dtype === "uint8" ? bytes : array.dtype === "float16" ? widen(new Uint16Array(bytes.buffer)) : new Float32Array(bytes.buffer);
    decoded.set(array, found);
  }
  return found;
}

/** The numbers of an array as nested lists. */
function nested(array: Array64): unknown {
  const build = (values: number[], shape: number[]): unknown => {
    if (shape.length < 2) return shape.length ? values : values[0];
    const size = values.length / shape[0];
    return Array.from({ length: shape[0] }, (_, n) => build(values.slice(n * size, (n + 1) * size), shape.slice(1)));
  };
  return build(Array.from(numbers(array)), array.shape);
}

const isArray = (value: unknown): value is Array64 => typeof value === "object" && value !== null && "dtype" in value && "shape" in value && "data" in value;

/** JSON in which arrays are lists of numbers. */
export const toJson = (value: unknown): string => JSON.stringify(value, (_, each) => (isArray(each) ? nested(each) : each), 1);
