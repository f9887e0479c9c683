// gRPC by @grpc/grpc-js: one channel over a Unix socket, a unary call for each echo, bodies as they are, without protocol buffers.

import { join } from "node:path";

import { DEADLINE, folder, foreign, main, version } from "./subject.mjs";

const { Client, Server, ServerCredentials, credentials } = foreign("@grpc/grpc-js");

const PATH = "/hailwire.bench.Echo/Echo";
const asItIs = (body) => body;

async function serve() {
  const { path, remove } = folder();
  const server = new Server();
  const method = {
    path: PATH,
    requestStream: false,
    responseStream: false,
    requestSerialize: asItIs,
    requestDeserialize: asItIs,
    responseSerialize: asItIs,
    responseDeserialize: asItIs,
  };
  server.addService({ Echo: method }, { Echo: (call, answer) => answer(null, call.request) });
  const address = `unix:${join(path, "echo.sock")}`;
  await new Promise((resolve, reject) => {
    server.bindAsync(address, ServerCredentials.createInsecure(), (error) => (error ? reject(error) : resolve()));
  });
  return {
    address,
    close: () => {
      server.forceShutdown();
      remove();
    },
  };
}

async function connect(address) {
  const client = new Client(address, credentials.createInsecure());
  const echo = (body) =>
    new Promise((resolve, reject) => {
      client.makeUnaryRequest(PATH, asItIs, asItIs, body, { deadline: Date.now() + DEADLINE }, (error, answer) =>
        error ? reject(error) : resolve(answer),
      );
    });
  return { echo, close: () => client.close() };
}

await main(serve, connect, version("@grpc/grpc-js"));
