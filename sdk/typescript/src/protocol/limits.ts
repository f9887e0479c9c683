/**
 * The bounds of the protocol that a program meets, as `spec/limits.md` states them. Numbers are bytes unless a name says otherwise.
 */

/** Most bytes of one frame's payload: its length field has 24 bits. */
export const MAX_FRAME_PAYLOAD = 0xff_ffff;
/** Most bytes of the payload of a frame other than `DATA`. */
export const MAX_HEADER = 65_536;
/** Most fields of the application's own in one header. */
export const MAX_HEADER_FIELDS = 128;
/** How deep maps and arrays may lie in each other. */
export const MAX_HEADER_DEPTH = 16;
/** Longest name of an agent or a node. */
export const MAX_NAME = 64;
/** Longest name of a method. */
export const MAX_METHOD = 128;
/** Longest affinity key. */
export const MAX_AFFINITY = 256;
/** Longest message of a status, and longest hint. */
export const MAX_STATUS_MESSAGE = 1024;
/** Longest details of a status. */
export const MAX_STATUS_DETAILS = 8192;
/** Longest body of a one-way send. */
export const MAX_SEND_BODY = 16_777_216;
/** Longest payload of a PING on the control stream. */
export const MAX_PING = 64;
/** Most pages of one list of offers. */
export const MAX_OFFER_PAGES = 5;
/** Most agents in one list of offers. */
export const MAX_AGENTS_PER_NODE = 1024;
/** Longest topic or pattern. */
export const MAX_TOPIC = 256;
/** Most tokens of a topic or pattern. */
export const MAX_TOPIC_TOKENS = 16;
/** Longest body of a message under a topic. */
export const MAX_TOPIC_BODY = 1_048_576;
/** Longest record of a stream of messages. */
export const MAX_TOPIC_RECORD = 1_179_648;
/** Streams that a side may open before it is granted more. */
export const MUX_MAX_STREAMS = 4096;
/** Bytes that a writer may send on a new stream. */
export const MUX_INITIAL_WINDOW = 16_384;
/** Largest window of one stream. */
export const MUX_STREAM_WINDOW = 2_097_152;
/** What all grown windows of a connection share. */
export const MUX_RECEIVE_POOL = 8_388_608;
/** Bytes that a stream queues before its writer waits. */
export const MUX_SEND_QUEUE = 262_144;
/** Most bytes of one DATA frame of the multiplexer. */
export const MUX_MAX_DATA = 16_384;
/** Pings that wait for their answer. */
export const MUX_MAX_PINGS = 16;
/** Longest reason of a close. */
export const MUX_MAX_REASON = 1024;
/** Longest datagram. */
export const MAX_DATAGRAM = 1100;
/** Longest path of a Unix socket. */
export const MAX_SOCKET_PATH = 107;
