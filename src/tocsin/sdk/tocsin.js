/**
 * Speak to a Tocsin broker from a web page. One file, no build; every broker serves it at /v1/tocsin.js.
 *
 *     import { Client } from "http://127.0.0.1:8480/v1/tocsin.js";
 *
 *     const client = new Client({ url: "http://127.0.0.1:8480", user: "ann", password: "a good secret", register: true });
 *     await client.open();
 *     await client.subscribe("emergency.Alerts", [-41.29, 174.78]);
 *     for await (const event of client.results()) console.log(event.channel, event.result);
 *
 * Every result made after subscribing arrives once and in order. After a broken connection the client connects again,
 * the broker continues after the last acknowledgement that it received, and the client drops duplicates by
 * (interest, cursor). Asking for the next result acknowledges the one before. Results that no longer exist are reported
 * as a gap. Whole numbers in results beyond 2^53 are rounded, as JSON.parse does; cursors and interests are strings.
 */

const FIRST_PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 30_000;
const WELL_MS = 10_000; // a connection that lasted longer resets the back-off
const ACKS_AT_ONCE = 500; // well below a broker's message limit
const RENEW_SHARE = 0.75; // of a token's life
const TOKEN_ENDED = 4401;
const START = "0-0-0";

/** An error, mostly of the broker: `code`, `status`, `hint`, `retry` (the same request may succeed later). */
export class TocsinError extends Error {
  constructor(message, { code = "error", status = 0, hint = null, retry = false, retryAfterS = 0 } = {}) {
    super(hint ? `${message} (${hint})` : message);
    this.name = "TocsinError";
    Object.assign(this, { code, status, hint, retry, retryAfterS });
  }
}

/** Below 0, 0 or above 0, as cursor `a` stands before, at or after `b`. */
export function compareCursors(a, b) {
  const left = a.split("-");
  const right = b.split("-");
  for (let i = 0; i < 3; i += 1) {
    // Numbers of 64 bits: compared as digits, since JavaScript would round them.
    const x = left[i].replace(/^0+(?=\d)/, "");
    const y = right[i].replace(/^0+(?=\d)/, "");
    if (x.length !== y.length) return x.length - y.length;
    if (x !== y) return x < y ? -1 : 1;
  }
  return 0;
}

const later = (a, b) => compareCursors(a, b) > 0;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class BackOff {
  tries = 0;

  /** Doubles from pause to pause, drawn from its upper half so that many clients do not come at once. */
  nextMs(atLeastS = 0) {
    const whole = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(this.tries, 30));
    this.tries += 1;
    return atLeastS * 1000 + whole * (0.5 + Math.random() / 2);
  }
}

/**
 * One subscriber at one broker.
 *
 *   url               the address of the broker; by default the server of the page
 *   user, password    the credentials; or `token`, which is renewed while the client is open
 *   application       the application of the user ("default")
 *   register          registers the user if it does not exist
 *   ack               "auto": a result is acknowledged when the next one is asked for; "manual": by ack()
 *   buffer            the largest number of results that wait for the consumer; then nothing is read until it has room
 *   patienceS         how long a request is retried while the broker is away; the stream of results is retried forever
 *   heartbeatS        a connection that is silent for this time is checked
 *   onstate           is called with "connected" or "disconnected"
 */
export class Client {
  #options;
  #url;
  #token = null;
  #renewTimer = null;
  #reached = false;
  #closed = false;
  #socket = null;
  #running = null;
  #wake = () => {}; // ends a pause
  #room = () => {}; // ends the wait for a consumer that is behind
  #inbox = [];
  #waiting = null;
  #failure = null;
  #held = null;
  #seen = new Map(); // per interest: the last cursor that came
  #taken = new Map(); // the last that the consumer has taken
  #unsent = new Map(); // acknowledgements that were not sent yet
  #unsure = new Map(); // sent, but not confirmed as durable
  #ackTimer = null;
  #iterator;

  constructor(options = {}) {
    const defaults = { application: "default", register: false, ack: "auto", buffer: 1000, patienceS: 15, heartbeatS: 30 };
    this.#options = { onstate: () => {}, ackEveryMs: 50, pauses: new BackOff(), ...defaults, ...options };
    const { user, password, token, ack, buffer } = this.#options;
    if ((user === undefined) !== (password === undefined) || (user === undefined && token === undefined)) {
      throw new TocsinError("who is it?", { hint: "give user and password, or a token" });
    }
    if (ack !== "auto" && ack !== "manual") throw new TocsinError('ack: must be "auto" or "manual"');
    if (!(buffer >= 1)) throw new TocsinError("buffer: must be above 0");
    this.#url = new URL(options.url ?? "/", globalThis.location?.href).href.replace(/\/$/, "");
    this.#token = token ?? null;
    this.#iterator = { [Symbol.asyncIterator]: () => this.#iterator, next: () => this.#next() };
    /** The subscriptions that this client has made or listed, by interest. */
    this.known = new Map();
    /** The last login: user, application, expires_at. */
    this.who = null;
  }

  /** Log in, and register before that where it was asked for. */
  async open() {
    if (this.#options.register) {
      try {
        await this.#call("POST", "/v1/register", this.#credentials(), this.#options.applicationToken);
      } catch (error) {
        if (error.code !== "conflict") throw error; // Who is there already only has to know the password.
      }
    }
    if (this.#token === null) await this.#login();
    else await this.#renew();
    return this;
  }

  /** Acknowledge what was taken, and leave. What was not taken comes again at the next login. */
  async close() {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#renewTimer);
    clearTimeout(this.#ackTimer);
    this.#wake();
    this.#room();
    this.#socket?.close(1000);
    this.#inbox = [];
    this.#settle();
    this.#options.patienceS = Math.min(this.#options.patienceS, 2);
    await this.flush().catch(() => {}); // Then some of it comes again.
    await this.#running;
  }

  /** End the token, and with it every connection that uses it. */
  async logout() {
    await this.flush();
    await this.#ask("POST", "/v1/logout");
    await this.close();
  }

  // --- subscriptions

  /**
   * Results for these values of the channel's parameters: those after the cursor `since`, else those made from now on.
   * Subscribing again with the same values answers with what is there. mode "notify" only tells that there is something
   * (`type: "available"`), to be had with pull(). `recovered` is false where something after `since` is gone.
   */
  async subscribe(channel, parameters = [], { since, mode = "inline", group } = {}) {
    const made = await this.#ask("POST", "/v1/subscriptions", { channel, parameters, since, mode, group });
    this.known.set(made.interest, made);
    return made;
  }

  /** By what subscribe() answered, or its id. What was subscribed to for a group ends for all its members. */
  async unsubscribe(subscription) {
    const id = subscription.id ?? subscription;
    if (subscription.group !== undefined && id.startsWith("grp_")) await this.unsubscribeGroup(subscription.group, id);
    else await this.#ask("DELETE", `/v1/subscriptions/${encodeURIComponent(id)}`);
    for (const [interest, subscription] of this.known) {
      if (subscription.id === id) this.#forget(interest);
    }
  }

  /** All subscriptions of the subscriber, with the cursors up to which they are acknowledged. */
  async subscriptions() {
    const found = [];
    let after = null;
    do {
      const page = await this.#ask("GET", `/v1/subscriptions${after === null ? "" : `?after=${encodeURIComponent(after)}`}`);
      found.push(...page.subscriptions);
      after = page.next;
    } while (after !== null);
    this.known = new Map(found.map((subscription) => [subscription.interest, subscription]));
    return found;
  }

  /** What may be subscribed to: names and parameters. */
  async channels() {
    return (await this.#ask("GET", "/v1/channels")).channels;
  }

  // --- results

  /**
   * All events, in order within each subscription: first those that were missed, then new ones. Each has `type`,
   * `channel` and `interest`, and
   *
   *   result         cursor, executed_at, result
   *   gap            cursor: results up to it that did not arrive no longer exist
   *   available      cursor: there are results up to it to pull
   *   ended          reason: the subscription has ended
   *
   * Ends when the client is closed; throws only errors that a retry cannot fix. Asking for the next event acknowledges
   * the one before; the event that the consumer holds when it leaves comes again, unless ack() was called for it.
   */
  results() {
    return this.#iterator;
  }

  /** The results that are not acknowledged, or all after the cursor `after`; waits up to `waitS` for the first. */
  async *pull(subscription, { after = null, limit = 1000, waitS = 0 } = {}) {
    const id = subscription.id ?? (await this.#idOf(subscription.interest));
    for (let more = true; more; ) {
      const query = new URLSearchParams({ limit });
      if (after !== null) query.set("after", after);
      if (waitS > 0) query.set("wait", waitS);
      const page = await this.#ask("GET", `/v1/subscriptions/${encodeURIComponent(id)}/results?${query}`);
      waitS = 0;
      for (const event of page.events) {
        for (const { item, interest, reached } of newEntries(event, START)) {
          if (item !== null) yield item;
          if (reached !== null && this.#options.ack === "auto") {
            this.#see(interest, reached);
            this.#take(interest, reached);
          }
        }
        after = event.data.to;
      }
      more = page.more && page.events.length > 0;
    }
    await this.flush();
  }

  /** Acknowledges these results, and everything before them of their interests. */
  ack(...taken) {
    for (const event of taken) this.#take(event.interest, event.cursor);
  }

  /** Resolves when everything acknowledged so far is durable at the broker. */
  async flush() {
    for (;;) {
      const acks = [...new Map([...this.#unsure, ...this.#unsent])].slice(0, ACKS_AT_ONCE);
      if (acks.length === 0) return;
      await this.#ask("POST", "/v1/acks", { acks: Object.fromEntries(acks) });
      for (const [interest, cursor] of acks) {
        for (const open of [this.#unsure, this.#unsent]) if (open.get(interest) === cursor) open.delete(interest);
      }
    }
  }

  /** Whether results could come at this moment. */
  get connected() {
    return this.#socket?.ready === true;
  }

  /**
   * Records into a feed, through the broker: {accepted, rejected: [{index, field, reason}]}. `key` makes it harmless to
   * publish the same twice; one is made where none is given. `visible` waits until queries see the records.
   */
  async publish(feed, records, { key = newKey(), visible = false } = {}) {
    const body = [records].flat().map((record) => JSON.stringify(record)).join("\n");
    const path = `/v1/feeds/${encodeURIComponent(feed)}${visible ? "?wait=visible" : ""}`;
    return this.#ask("POST", path, body, { "Idempotency-Key": key });
  }

  // --- groups, and the subscriber's own account

  /** The groups that the subscriber is in: {name, created_at}. */
  async groups() {
    const found = [];
    let after = null;
    do {
      const page = await this.#ask("GET", `/v1/groups${after === null ? "" : `?after=${encodeURIComponent(after)}`}`);
      found.push(...page.groups);
      after = page.next;
    } while (after !== null);
    return found;
  }

  /** One of them: {name, created_at, members, subscriptions: [{id, interest, mode}]}. */
  async group(name) {
    const members = [];
    for (let after = null; ; ) {
      const query = after === null ? "" : `?after=${encodeURIComponent(after)}`;
      const { next, ...group } = await this.#ask("GET", `/v1/groups/${encodeURIComponent(name)}${query}`);
      members.push(...group.members);
      if (next === null) return { ...group, members };
      after = next;
    }
  }

  /** What was held through it alone ends. */
  async leaveGroup(name) {
    const path = `/v1/groups/${encodeURIComponent(name)}/members/${encodeURIComponent(this.who.user)}`;
    await this.#ask("DELETE", path);
  }

  /** By the id that group() shows, or that subscribing for the group answered: it ends for all members. */
  async unsubscribeGroup(name, id) {
    await this.#ask("DELETE", `/v1/groups/${encodeURIComponent(name)}/subscriptions/${encodeURIComponent(id)}`);
  }

  /** Changes the password. Earlier tokens and other connections end; this client continues with a new token. */
  async changePassword(old, password) {
    const { user, application } = this.who;
    await this.#ask("PUT", `/v1/subscribers/${encodeURIComponent(user)}/password`, { old, password });
    Object.assign(this.#options, { user, application, password });
    await this.#login();
  }

  // --- the consumer's side

  async #next() {
    if (this.#waiting !== null) throw new TocsinError("somebody waits for the next result already");
    this.#running ??= this.#closed ? null : this.#run();
    for (;;) {
      const held = this.#held;
      this.#held = null;
      if (held !== null && held.reached !== null && this.#options.ack === "auto") this.#take(held.interest, held.reached);
      while (this.#inbox.length === 0) {
        if (this.#closed) return { done: true, value: undefined };
        if (this.#failure !== null) throw this.#failure;
        await new Promise((resolve) => { this.#waiting = resolve; });
      }
      this.#held = this.#inbox.shift();
      if (this.#inbox.length <= this.#options.buffer / 2) this.#room();
      if (this.#held.item !== null) return { done: false, value: this.#held.item };
    }
  }

  #settle() {
    const waiting = this.#waiting;
    this.#waiting = null;
    waiting?.();
  }

  #see(interest, cursor) {
    if (later(cursor, this.#seen.get(interest) ?? START)) this.#seen.set(interest, cursor);
  }

  #take(interest, cursor) {
    if (!later(cursor, this.#taken.get(interest) ?? START)) return;
    this.#taken.set(interest, cursor);
    this.#tell(interest, cursor);
  }

  #tell(interest, cursor) {
    this.#unsent.set(interest, cursor);
    this.#ackTimer ??= setTimeout(() => this.#sendAcks(), this.#options.ackEveryMs);
  }

  #forget(interest) {
    for (const cursors of [this.known, this.#seen, this.#taken, this.#unsent, this.#unsure]) cursors.delete(interest);
  }

  #sendAcks() {
    this.#ackTimer = null;
    if (!this.connected || this.#unsent.size === 0) return; // They are sent after the next connect.
    const acks = [...this.#unsent].slice(0, ACKS_AT_ONCE);
    for (const [interest, cursor] of acks) {
      this.#unsent.delete(interest);
      this.#unsure.set(interest, cursor);
    }
    this.#socket.send(JSON.stringify({ ack: Object.fromEntries(acks) }));
    if (this.#unsent.size > 0) this.#ackTimer = setTimeout(() => this.#sendAcks(), this.#options.ackEveryMs);
  }

  // --- the connection

  async #run() {
    const pauses = this.#options.pauses;
    while (!this.#closed && this.#failure === null) {
      const since = Date.now();
      let error;
      try {
        error = await this.#connect();
      } catch (thrown) {
        error = thrown;
      }
      this.#options.onstate("disconnected");
      if (this.#closed) return;
      if (error instanceof TocsinError && !error.retry) {
        this.#failure = error;
        this.#settle();
        return;
      }
      if (Date.now() - since > WELL_MS) pauses.tries = 0;
      // A consumer that is behind is waited for; it comes back at once when it has room.
      if (this.#inbox.length >= this.#options.buffer) await new Promise((resolve) => { this.#room = resolve; });
      else await this.#pause(pauses.nextMs(error.retryAfterS ?? 0));
    }
  }

  /** A pause that ends when the browser says that it is online again, or the client is closed. */
  #pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#wake(), ms);
      const online = () => this.#wake();
      globalThis.addEventListener?.("online", online);
      this.#wake = () => {
        this.#wake = () => {};
        clearTimeout(timer);
        globalThis.removeEventListener?.("online", online);
        resolve();
      };
    });
  }

  /** One connection, until it breaks; resolves to why. */
  async #connect() {
    if (this.#token === null) await this.#login();
    const token = this.#token;
    return new Promise((resolve) => {
      const socket = new WebSocket(`${this.#url.replace(/^http/, "ws")}/v1/stream`);
      this.#socket = socket;
      let why = new TocsinError("the connection broke", { code: "unavailable", retry: true });
      let silence = null;
      const leave = (error) => {
        why = error;
        // A connection that is dead takes long to close; nobody waits for that.
        socket.onmessage = null;
        socket.close();
        socket.onclose?.({ code: 0 });
      };
      const listen = (tried) => {
        clearTimeout(silence);
        silence = setTimeout(() => {
          if (tried) return leave(new TocsinError("the broker is silent", { code: "unavailable", retry: true }));
          socket.send(JSON.stringify({ ref: 1, ack: {} }));
          return listen(true);
        }, this.#options.heartbeatS * 1000);
      };
      socket.onopen = () => {
        socket.send(JSON.stringify({ ref: 0, login: { token } }));
        listen(false);
      };
      socket.onmessage = ({ data }) => {
        listen(false);
        try {
          this.#receive(socket, JSON.parse(data), token);
        } catch (error) {
          leave(error instanceof TocsinError ? error : new TocsinError(`this is not a broker's message: ${error.message}`));
        }
      };
      socket.onclose = ({ code }) => {
        socket.onclose = null;
        socket.ready = false;
        clearTimeout(silence);
        if (code === TOKEN_ENDED && why.code === "unavailable") why = this.#unauthorized("the token has ended", token);
        resolve(why);
      };
      if (this.#closed) socket.close();
    });
  }

  #receive(socket, said, token) {
    if ("specversion" in said) {
      this.#options.pauses.tries = 0;
      this.#add(said);
      if (this.#inbox.length >= this.#options.buffer) {
        // A browser cannot stop reading: leaving is how it says that it is behind. Nothing is lost by it.
        throw new TocsinError("the consumer is behind", { code: "behind", retry: true });
      }
    } else if ("error" in said) {
      if (said.error.code === "unauthorized") throw this.#unauthorized(said.error.message, token);
      if (said.ref === 0) throw errorOf(said.error);
    } else if (said.ref === 0) {
      socket.ready = true;
      this.#options.onstate("connected");
      this.#sendAcks();
    }
  }

  #unauthorized(message, token) {
    if (this.#options.password === undefined) return new TocsinError(message, { code: "unauthorized", status: 401 });
    if (this.#token === token) this.#token = null;
    return new TocsinError(message, { code: "unauthorized", status: 401, retry: true });
  }

  #add(event) {
    const { interest, data } = event;
    if (event.type === "tocsin.ended") this.#forget(interest);
    else if (event.type === "tocsin.results" || event.type === "tocsin.available") {
      const before = this.#seen.get(interest) ?? START;
      if (!later(data.to, before)) {
        // The broker says again what was taken: the acknowledgement did not reach it.
        if (this.#taken.has(interest)) this.#tell(interest, this.#taken.get(interest));
        return;
      }
      this.#inbox.push(...newEntries(event, before));
      if (event.type === "tocsin.results") this.#see(interest, data.to);
      this.#settle();
      return;
    } else return; // A type that is not known here.
    this.#inbox.push(...newEntries(event, START));
    this.#settle();
  }

  // --- requests

  #credentials() {
    const { user, password, application } = this.#options;
    return { user, password, application };
  }

  async #login() {
    if (this.#options.password === undefined) {
      throw new TocsinError("the token is no longer good", { code: "unauthorized", status: 401 });
    }
    this.#keep(await this.#call("POST", "/v1/login", this.#credentials()));
  }

  async #renew() {
    try {
      this.#keep(await this.#call("POST", "/v1/token", undefined, this.#token));
    } catch (error) {
      if (error.code !== "unauthorized") throw error;
      await this.#login();
    }
  }

  #keep({ token, ...who }) {
    this.#token = token;
    this.who = who;
    clearTimeout(this.#renewTimer);
    if (this.#closed) return;
    // A clock that goes wrong must not renew without end, or never; a timer takes at most 2^31 ms.
    const lifeMs = Math.min(Math.max(new Date(who.expires_at) - Date.now(), 10_000), 2 ** 31);
    // If it fails, the next request that needs the token gets the error.
    this.#renewTimer = setTimeout(() => this.#renew().catch(() => {}), lifeMs * RENEW_SHARE);
  }

  async #idOf(interest) {
    if (!this.known.has(interest)) await this.subscriptions();
    if (!this.known.has(interest)) throw new TocsinError(`there is no subscription with the interest ${interest}`);
    return this.known.get(interest).id;
  }

  /** As the subscriber. A token that the broker does not want is replaced once. */
  async #ask(method, path, body, headers) {
    if (this.#token === null) await this.#login();
    const token = this.#token;
    try {
      return await this.#call(method, path, body, token, headers);
    } catch (error) {
      if (error.code !== "unauthorized" || this.#options.password === undefined) throw error;
      if (this.#token === token) await this.#login();
      return this.#call(method, path, body, this.#token, headers);
    }
  }

  /** The answer's JSON. Whatever is asked of a broker may be asked twice. */
  async #call(method, path, body, token, headers = {}) {
    const pauses = new BackOff();
    const until = Date.now() + this.#options.patienceS * 1000;
    for (;;) {
      try {
        return await this.#once(method, path, body, token, headers);
      } catch (error) {
        const pause = pauses.nextMs(error.retryAfterS);
        if (!this.#reached || !error.retry || Date.now() + pause > until) throw error;
        await sleep(pause);
      }
    }
  }

  async #once(method, path, body, token, headers) {
    const sent = { ...headers };
    if (body !== undefined) sent["Content-Type"] = "application/json";
    if (token) sent.Authorization = `Bearer ${token}`;
    let response;
    let said;
    try {
      const data = typeof body === "string" ? body : JSON.stringify(body);
      response = await fetch(this.#url + path, { method, body: data, headers: sent, cache: "no-store" });
      said = await response.text();
    } catch (error) {
      throw new TocsinError(`no broker answers at ${this.#url}: ${error.message}`, { code: "no_broker", retry: true });
    }
    try {
      said = JSON.parse(said);
    } catch {
      const status = response.status;
      throw new TocsinError(`what answers at ${this.#url} is not a Tocsin broker`, { code: "no_broker", status });
    }
    this.#reached = true;
    if (response.ok || (response.status === 422 && "accepted" in said)) return said;
    throw errorOf(said.error ?? {}, response);
  }
}

/** What is new of an event after the cursor `before`, as it is handed out; `reached`: who has taken it has all up to there. */
function newEntries({ type, channel, interest, data }, before) {
  if (type === "tocsin.ended") {
    return [{ item: { type: "ended", channel, interest, reason: data.reason }, interest, reached: null }];
  }
  if (type === "tocsin.available") {
    return [{ item: { type: "available", channel, interest, cursor: data.to }, interest, reached: null }];
  }
  const fresh = data.results.filter((result) => later(result.cursor, before));
  const list = fresh.map((result, i) => ({
    item: { type: "result", channel, interest, ...result },
    interest,
    reached: i === fresh.length - 1 ? data.to : result.cursor,
  }));
  const reached = fresh.length === 0 ? data.to : null;
  if (data.gap !== null && later(data.gap, before)) {
    list.unshift({ item: { type: "gap", channel, interest, cursor: data.gap }, interest, reached });
  } else if (fresh.length === 0) list.push({ item: null, interest, reached });
  return list;
}

function errorOf({ code = "error", message = "the broker refused", hint = null, retry = false, retry_after_s = 0 }, response) {
  const status = response?.status ?? 0;
  const asked = Number(response?.headers.get("Retry-After") ?? 0) || 0;
  return new TocsinError(message, { code, status, hint, retry: retry || status === 429, retryAfterS: retry_after_s || asked });
}

function newKey() {
  // Not crypto.randomUUID(): that is missing on pages that came without TLS.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
