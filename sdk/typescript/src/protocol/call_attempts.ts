/**
 * One call that may be made more than once: when it is made again, and whose result counts.
 *
 * A retry follows an attempt that failed in a way that another may not; a hedge is made beside one that takes long. Both have the same bounds: how
 * many the call allows, the budget that all calls of the client share, and the deadline, at or past which nothing starts. The first answer wins. A
 * failure that says when another try may help is not followed by one before that.
 */

import { Code, isRetryable, type Status } from "./status.js";

/** Most further attempts of one call. */
export const MAX_FURTHER_ATTEMPTS = 10;

const FIRST_PAUSE = 25;
const LONGEST_PAUSE = 1000;
const LONGEST_RETRY_AFTER = 60_000;

/**
 * The further attempts that all calls of a client may make: 10 at first, a fifth of one more for each call that allows some, and no more than 100 at
 * once. So a failure does not multiply the load that caused it.
 */
export class RetryBudget {
  #hundredths = 1000;

  /** A call that allows further attempts is made for the first time. */
  addCall(): void {
    this.#hundredths = Math.min(10_000, this.#hundredths + 20);
  }

  /** Whether a further attempt is left. */
  hasOne(): boolean {
    return this.#hundredths >= 100;
  }

  /** Takes one; false where none is left. */
  take(): boolean {
    if (!this.hasOne()) return false;
    this.#hundredths -= 100;
    return true;
  }
}

/** What is to be done: make the call, or give it the result of this attempt. Attempts are counted from 0. */
export interface AttemptAction {
  readonly do: "start" | "finish";
  readonly attempt: number;
}

/** Which further attempts a call allows. */
export interface AttemptPolicy {
  /** How many at most. */
  readonly retries: number;
  /** Milliseconds after which another is made beside the newest; undefined for never. */
  readonly hedgeAfter: number | undefined;
}

/** How many further attempts a policy allows. */
export function mostFurther(policy: AttemptPolicy): number {
  const hedges = policy.hedgeAfter === undefined ? 0 : 1;
  return Math.min(MAX_FURTHER_ATTEMPTS, Math.max(policy.retries, hedges));
}

/** The attempts of one call. Times are milliseconds of one clock. */
export class CallAttempts {
  readonly #policy: AttemptPolicy;
  readonly #deadline: number;
  readonly #budget: RetryBudget;
  readonly #running = new Set<number>();
  readonly #actions: AttemptAction[] = [];
  #started = 0;
  #pause = FIRST_PAUSE;
  #next: number | undefined;
  #finished = false;

  /** The first attempt starts now. `deadline` is undefined for none. */
  constructor(now: number, policy: AttemptPolicy, deadline: number | undefined, budget: RetryBudget) {
    this.#policy = policy;
    this.#deadline = deadline ?? Number.POSITIVE_INFINITY;
    this.#budget = budget;
    budget.addCall();
    this.#start(now);
  }

  /** An attempt has an answer. */
  handleAnswer(attempt: number): void {
    if (this.#running.delete(attempt)) this.#finish(attempt);
  }

  /** An attempt failed. `draw` is from 0 to 1: by up to half of itself the pause is shortened. */
  handleFailure(now: number, attempt: number, status: Pick<Status, "code" | "retryAfterMs">, draw: number): void {
    if (!this.#running.delete(attempt) || this.#finished) return;
    const asked = status.retryAfterMs;
    if (!isRetryable(status.code) || asked > LONGEST_RETRY_AFTER) {
      this.#finish(attempt);
      return;
    }
    // What was due beside it is not due before this one's pause is over.
    if (this.#running.size === 0) this.#next = undefined;
    const pause = this.#pause * (1 - draw / 2);
    this.#pause = Math.min(LONGEST_PAUSE, this.#pause * 2);
    if (this.#budget.hasOne()) this.#schedule(now + Math.max(pause, asked));
    if (this.#running.size === 0 && this.#next === undefined) this.#finish(attempt);
  }

  /** It is this late. */
  handleTimeout(now: number): void {
    if (this.#finished || this.#next === undefined || this.#next > now) return;
    this.#next = undefined;
    if (now < this.#deadline && this.#budget.take()) this.#start(now);
    else if (this.#running.size === 0) this.#finish(this.#started - 1);
  }

  /** What is to be done next; undefined where all was given. */
  pollAction(): AttemptAction | undefined {
    return this.#actions.shift();
  }

  /** When {@link CallAttempts.handleTimeout} is to be called; undefined for never. */
  pollTimeout(): number | undefined {
    return this.#next;
  }

  #start(now: number): void {
    const attempt = this.#started;
    this.#started += 1;
    this.#running.add(attempt);
    this.#actions.push({ do: "start", attempt });
    if (this.#policy.hedgeAfter !== undefined) this.#schedule(now + this.#policy.hedgeAfter);
  }

  #schedule(at: number): void {
    if (this.#started > mostFurther(this.#policy) || at >= this.#deadline) return;
    this.#next = Math.min(at, this.#next ?? at);
  }

  #finish(attempt: number): void {
    if (this.#finished) return;
    this.#finished = true;
    this.#next = undefined;
    this.#actions.push({ do: "finish", attempt });
  }
}

/** Why a call cannot be made again, or undefined where it can; with a hint. */
export function whyNotRepeatable(to: string, durable: boolean, key: string, whole: boolean): Status | undefined {
  const refused = (why: string, hint: string): Status => ({
    code: Code.INVALID_ARGUMENT,
    message: `the call of \`${to}\` cannot be made again: ${why}`,
    hint,
    details: "",
    retryAfterMs: 0,
  });
  if (durable) return refused("it is durable, so its node makes it again as often as need be", "leave retries and hedging out");
  if (key === "") return refused("it has no idempotency key", "give it one that is the same only for the same work");
  return whole ? undefined : refused("its body is a stream", "give the body as bytes");
}
