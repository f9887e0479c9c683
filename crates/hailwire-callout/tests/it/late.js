// An agent over gRPC on grpc-js, as the kit for TypeScript has it: the headers of its answer leave with its first
// message, it names no events and no concurrency, and it answers a configuration without saying which.
//
//   node late.js PROTO
'use strict';
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const definition = loader.loadSync(process.argv[2], {
  keepCase: true, longs: Number, bytes: Buffer, defaults: true, oneofs: true,
});
const service = grpc.loadPackageDefinition(definition).zentinel.agent.v2.AgentServiceV2.service;

function answer(message) {
  switch (message.message) {
    case 'handshake':
      return { handshake: {
        protocol_version: 2,
        success: true,
        capabilities: {
          agent_id: 'late', name: 'late', version: '1',
          features: { streaming_body: true, guardrails: true, config_push: true, concurrent_requests: 10 },
          limits: { max_body_size: 10485760, preferred_chunk_size: 65536 },
        },
      } };
    case 'ping':
      return { pong: { sequence: message.ping.sequence, ping_timestamp_ms: message.ping.timestamp_ms } };
    case 'cancel':
      return null;
    case 'request_headers': {
      const head = message.request_headers;
      const response = { correlation_id: head.metadata.correlation_id, audit: { tags: ['js'], custom: { uri: head.uri } } };
      if (head.uri === '/block') response.block = { status: 403 };
      else response.allow = {};
      return { response };
    }
    case 'request_body_chunk': {
      const chunk = message.request_body_chunk;
      const response = { correlation_id: chunk.correlation_id, needs_more: !chunk.is_last };
      if (chunk.data.includes('attack')) response.block = { status: 406 };
      else response.allow = {};
      return { response };
    }
    default:
      return { response: { correlation_id: message[message.message].correlation_id || '', allow: {} } };
  }
}

const server = new grpc.Server();
server.addService(service, {
  ProcessEvent: (call, done) => done(null, answer(call.request)),
  ProcessStream: (call) => {
    call.on('data', (message) => {
      const said = answer(message);
      if (said) call.write(said);
    });
    call.on('end', () => call.end());
    call.on('error', () => {});
  },
  ControlStream: (call) => {
    call.on('data', () => {});
    call.on('end', () => call.end());
  },
});
server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(port);
});
