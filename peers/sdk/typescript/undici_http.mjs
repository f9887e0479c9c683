// HTTP/1.1 by undici to a server of node:http, over a Unix socket: connections are kept, as many as calls are in flight.

import { once } from "node:events";
import { createServer } from "node:http";
import { join } from "node:path";

import { DEADLINE, folder, foreign, main, version } from "./subject.mjs";

const { Pool } = foreign("undici");

async function serve() {
  const { path, remove } = folder();
  const server = createServer((request, answer) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => answer.end(Buffer.concat(chunks)));
  });
  const address = join(path, "echo.sock");
  server.listen(address);
  await once(server, "listening");
  return {
    address,
    close: () => {
      server.closeAllConnections();
      server.close();
      remove();
    },
  };
}

// Its own timeouts are of the time until the headers, and between two chunks of the body.
const OWN = { headersTimeout: DEADLINE, bodyTimeout: DEADLINE };

async function connect(address, deadline) {
  const pool = new Pool("http://localhost", { socketPath: address });
  const echo = async (body) => {
    const answer = await pool.request({ path: "/echo", method: "POST", body, ...deadline(OWN) });
    return answer.body.bytes();
  };
  return { echo, close: () => pool.destroy() };
}

await main(serve, connect, version("undici"));
