/**
 * Lists of agents that a node offers, in pages (`spec/session.md`, "Offers"). A program does nothing with them, but a page that is none ends the
 * connection all the same.
 */

import { isName } from "./address.js";
import { MapWriter, readList, readTexts } from "./headers.js";
import { MAX_OFFER_PAGES } from "./limits.js";
import { type Int, MalformedError, MsgpackReader, readMap } from "./msgpack.js";

/** An agent in a list of offers. */
export interface AgentOffer {
  readonly name: string;
  readonly description: string;
  readonly tags: readonly string[];
  readonly version: string;
  readonly group: { readonly members: number; readonly priority: number; readonly overflow: number };
}

/** A page of a list of offers. */
export interface AgentOffers {
  readonly agents: readonly AgentOffer[];
  readonly number: Int;
  readonly page: number;
  readonly pages: number;
}

const MAX_U8 = 0xff;
const MAX_U32 = 0xffff_ffff;

/** The bytes of a page of offers. */
export function encodeOffers(offers: AgentOffers): Buffer {
  const map = new MapWriter();
  const agents = offers.agents.map((offer) => {
    const agent = new MapWriter();
    agent.text("name", offer.name, true);
    agent.text("description", offer.description);
    agent.texts("tags", offer.tags);
    agent.text("version", offer.version);
    const group = new MapWriter();
    group.uint("members", offer.group.members, 0);
    group.uint("priority", offer.group.priority, 0);
    group.uint("overflow", offer.group.overflow, 0);
    agent.map("group", group);
    return agent.finish();
  });
  map.list("agents", agents);
  map.uint("number", offers.number, 0);
  map.uint("page", offers.page, 0);
  map.uint("pages", offers.pages, 0);
  return map.finish();
}

/** Reads a page of offers. */
export function decodeOffers(bytes: Buffer, start = 0, end = bytes.length): AgentOffers {
  const reader = new MsgpackReader(bytes, start, end);
  const offers: { -readonly [Key in keyof AgentOffers]: AgentOffers[Key] } = { agents: [], number: 0, page: 0, pages: 0 };
  const seen = readMap(reader, 1, (key) => {
    switch (key) {
      case "agents":
        offers.agents = readList(reader, () => readOffer(reader));
        return 0;
      case "number":
        offers.number = reader.uint();
        return 1;
      case "page":
        offers.page = reader.number(MAX_U32);
        return 2;
      case "pages":
        offers.pages = reader.number(MAX_U32);
        return 3;
      default:
        return -1;
    }
  });
  if ((seen & 1) === 0) throw new MalformedError("the list is missing");
  return offers;
}

/** Checks where a page of offers says that it belongs; `first` where it came as the first of its list. */
export function checkOfferPage(offers: AgentOffers, first: boolean): void {
  const pages = Math.max(offers.pages, 1);
  if (pages > MAX_OFFER_PAGES) throw new MalformedError("header exceeds a bound: number of pages", "bound");
  const counted = offers.number !== 0;
  if (offers.page >= pages || first !== (offers.page === 0) || (!counted && pages > 1)) {
    throw new MalformedError("a page of offers that no list can have");
  }
}

function readOffer(reader: MsgpackReader): AgentOffer {
  const offer: { -readonly [Key in keyof AgentOffer]: AgentOffer[Key] } = {
    name: "",
    description: "",
    tags: [],
    version: "",
    group: { members: 0, priority: 0, overflow: 0 },
  };
  const seen = readMap(reader, 3, (key) => {
    switch (key) {
      case "name":
        offer.name = reader.text();
        return 0;
      case "description":
        offer.description = reader.text();
        return 1;
      case "tags":
        offer.tags = readTexts(reader);
        return 2;
      case "version":
        offer.version = reader.text();
        return 3;
      case "group":
        offer.group = readGroup(reader);
        return 4;
      default:
        return -1;
    }
  });
  if ((seen & 1) === 0 || !isName(offer.name)) throw new MalformedError("an offer without a name");
  return offer;
}

function readGroup(reader: MsgpackReader): AgentOffer["group"] {
  const group = { members: 0, priority: 0, overflow: 0 };
  readMap(reader, 4, (key) => {
    switch (key) {
      case "members":
        group.members = reader.number(MAX_U32);
        return 0;
      case "priority":
        group.priority = reader.number(MAX_U8);
        return 1;
      case "overflow":
        group.overflow = reader.number(MAX_U32);
        return 2;
      default:
        return -1;
    }
  });
  return group;
}
