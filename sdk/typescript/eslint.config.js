import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist/", "build/", ".building-*/", "reference/", "node_modules/"] },
  {
    files: ["**/*.ts"],
    extends: [...tseslint.configs.strictTypeChecked, ...tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      "@typescript-eslint/no-explicit-any": "error",
      "@typescript-eslint/explicit-module-boundary-types": "error",
      "@typescript-eslint/switch-exhaustiveness-check": "off",
      // Numbers are fit for messages.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true, allowBoolean: true, allowNullish: true }],
      // Who takes a call, or hands a promise on, often has nothing to await.
      "@typescript-eslint/no-confusing-void-expression": "off",
      "@typescript-eslint/no-empty-function": "off",
      "@typescript-eslint/class-literal-property-style": "off",
      // A stream belongs to one class of each layer, and the compiler checks the rest.
      "@typescript-eslint/prefer-return-this-type": "off",
      // `node:test` runs what is not awaited.
      "@typescript-eslint/no-floating-promises": ["error", { allowForKnownSafeCalls: [{ from: "package", name: ["test", "describe", "before", "after"], package: "node:test" }] }],
    },
  },
);
