/**
 * A call that is made again, or beside itself: carries out what {@link CallAttempts} decides.
 */

import type { Outgoing } from "./body.js";
import type { CallerStream, CallPlan } from "./caller.js";
import { now } from "./deadlines.js";
import { HailError } from "./errors.js";
import { type AttemptPolicy, CallAttempts, type RetryBudget } from "./protocol/call_attempts.js";

/** Makes a call once more. */
export type MakeAttempt = (plan: CallPlan, body: Outgoing) => CallerStream;

/** A call that may be made several times. */
export class AttemptedCall {
  /** The attempt whose answer has begun, or that failed last. */
  readonly winner: Promise<CallerStream>;
  readonly #attempts: CallAttempts;
  readonly #make: MakeAttempt;
  readonly #plan: CallPlan;
  readonly #body: Outgoing;
  readonly #made: CallerStream[] = [];
  #timer: NodeJS.Timeout | undefined = undefined;
  #resolve: (stream: CallerStream) => void = () => undefined;
  #finished = false;

  constructor(make: MakeAttempt, plan: CallPlan, body: Outgoing, policy: AttemptPolicy, budget: RetryBudget) {
    this.#make = make;
    this.#plan = plan;
    this.#body = body;
    this.winner = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    this.#attempts = new CallAttempts(now(), policy, plan.until, budget);
    plan.signal?.addEventListener("abort", this.#onAbort);
    this.#act();
  }

  /** Gives all attempts up. */
  cancel(): void {
    if (this.#finished) return;
    const last = this.#made[this.#made.length - 1];
    for (const stream of this.#made) stream.leave();
    if (last !== undefined) this.#finish(last);
  }

  readonly #onAbort = (): void => {
    this.cancel();
  };

  #act(): void {
    for (let action = this.#attempts.pollAction(); action !== undefined; action = this.#attempts.pollAction()) {
      if (action.do === "start") {
        this.#start(action.attempt);
      } else {
        const chosen = this.#made[action.attempt];
        if (chosen !== undefined) this.#finish(chosen);
      }
    }
    if (this.#timer !== undefined) clearTimeout(this.#timer);
    this.#timer = undefined;
    const due = this.#attempts.pollTimeout();
    if (due === undefined || this.#finished) return;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#attempts.handleTimeout(now());
      this.#act();
    }, Math.max(0, Math.ceil(due - now())));
  }

  #start(attempt: number): void {
    const stream = this.#make(this.#plan, this.#body);
    this.#made[attempt] = stream;
    stream.whenBegun().then(
      () => {
        this.#attempts.handleAnswer(attempt);
        this.#act();
      },
      (error: unknown) => {
        const failed = error instanceof HailError ? { code: error.number, retryAfterMs: error.retryAfterMs } : { code: 2, retryAfterMs: 0 };
        this.#attempts.handleFailure(now(), attempt, failed, Math.random());
        this.#act();
      },
    );
  }

  #finish(chosen: CallerStream): void {
    if (this.#finished) return;
    this.#finished = true;
    this.#plan.signal?.removeEventListener("abort", this.#onAbort);
    for (const stream of this.#made) if (stream !== chosen) stream.leave();
    this.#resolve(chosen);
  }
}
