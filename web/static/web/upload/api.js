// Calls of our own REST API, in the page and in the worker: the session's cookie goes along, and the token against forgery.

export class Refused extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail || problem.title || `The server answered ${status}.`);
    this.status = status;               // 0: no answer
    this.code = problem.code || "";
    this.errors = problem.errors || [];
    this.retryAfter = retryAfter;       // seconds, or null
  }
}

// The token against forgery as it is now: signing in again, in another tab, changes it. A worker has no cookies to look at.
export const csrfNow = (given) => /(?:^|; )csrftoken=([^;]+)/.exec(document.cookie)?.[1] ?? given;

// `csrf` gives the token.
export function apiOf(csrf) {
  return async function api(path, body, method = body === undefined ? "GET" : "POST") {
    const headers = { "X-CSRFToken": csrf(), Accept: "application/json" };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(`/api/v1${path}`, {
        method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin", redirect: "error",
      });
    } catch {
      throw new Refused(0, { detail: "The connection is lost." }, null);
    }
    const said = await answer.json().catch(() => ({}));
    if (answer.ok) return said;
    throw new Refused(answer.status, said, Number(answer.headers.get("Retry-After")) || null);
  };
}

// What ends by itself: nothing answered, the server or the store is busy or away.
export const mayComeBack = (status) => status === 0 || status === 408 || status === 429 || status >= 500;
