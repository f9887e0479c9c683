// NATS by @nats-io/transport-node: request and reply through a nats-server of its own, one connection on each side. NATS has no Unix sockets.

import { DEADLINE, foreign, main, natsServer, version } from "./subject.mjs";

const { connect: attach } = foreign("@nats-io/transport-node");

async function serve(listen) {
  const server = await natsServer(listen);
  const connection = await attach({ servers: server.url });
  connection.subscribe("echo", { callback: (_error, message) => message.respond(message.data) });
  await connection.flush();
  return {
    address: server.url,
    close: async () => {
      await connection.close();
      await server.close();
    },
  };
}

async function connect(address) {
  const connection = await attach({ servers: address });
  const echo = async (body) => (await connection.request("echo", body, { timeout: DEADLINE })).data;
  return { echo, close: () => connection.close() };
}

await main(serve, connect, version("@nats-io/transport-node"));
