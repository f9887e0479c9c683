/**
 * `Symbol.asyncDispose`, where the runtime does not have it: `await using` asks for it by this name. Imported before all else.
 */

const symbols: { asyncDispose?: symbol } = Symbol;
if (symbols.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol.for("Symbol.asyncDispose") });
}

export {};
