// SPDX-License-Identifier: Apache-2.0
// One round's key space in the rendezvous, and the nodes' proxies that its clients come through.
// However often a proxy's connection ends and another one begins, each request takes effect once,
// and each reply arrives once. What is said waits until release(), so that a journal can keep first
// what it follows from. Pure: no I/O, clock or thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/store/byte_stream.h"
#include "rendezvous/store/proxy_frame.h"
#include "rendezvous/store/request_parser.h"
#include "rendezvous/store/store_state.h"

namespace ddprun::store {

class ProxiedStore {
 public:
  using Node = std::uint64_t;

  // `limits` outlives this.
  ProxiedStore(std::uint64_t round, const RequestLimits& limits, std::size_t max_total_bytes);

  std::uint64_t round() const { return round_; }

  // What a node's proxy said; another round's is ignored. Throws Error(kProtocol): it makes no
  // sense, and nothing that comes later from this node will.
  void receive(Node from, const ProxyFrame& frame);
  // Of the last receive(), also where it threw: the bytes that were new, and their position. They
  // are what replay() of another ProxiedStore takes, in the order of all nodes', to become like
  // this one.
  const ProxyFrame& fresh() const { return fresh_; }
  void replay(Node from, const ProxyFrame& fresh);

  // A new connection of the node: what it has not acknowledged goes again.
  void reconnected(Node node);

  // What may be said of all that was received until now, to the nodes that it concerns.
  struct Mark {
    Node node = 0;
    std::uint64_t said = 0, received = 0;  // positions
  };
  std::vector<Mark> take_marks();
  void release(const std::vector<Mark>& marks);
  // The next message to a node's proxy; nullopt: nothing is to be said now.
  std::optional<std::string> next_frame(Node to);

  // All of it as bytes, for restore() of an empty one of the same round and limits.
  std::string snapshot() const;
  // Throws Error(kProtocol): they make no sense.
  void restore(std::string_view snapshot);

  std::size_t num_keys() const { return state_.num_keys(); }
  // Keys, values, waits; requests and replies that are under way.
  std::size_t total_bytes() const;

 private:
  struct Proxy {
    IncomingBytes in;
    ItemReader items;
    std::string request;  // an item that is not complete
    OutgoingBytes out;
    std::uint64_t released_in = 0, released_out = 0;
    bool is_broken = false;
    bool is_heard = false;  // on this connection: it has said what it has
    std::unordered_map<std::uint32_t, ConnectionId> connections;
  };
  static constexpr ConnectionId kRefused = 0;
  struct Client {
    Node node = 0;
    std::uint32_t connection = 0;  // the node's name for it
  };

  void take_items(Node from, Proxy& proxy, std::string_view bytes);
  void carry_out(Node from, Proxy& proxy, std::uint32_t connection, std::string_view requests);
  void disconnect(Proxy& proxy, std::uint32_t connection);
  ConnectionId connection_of(Node node, Proxy& proxy, std::uint32_t connection);
  void deliver(const Outcome& outcome);
  void refuse(Node node, std::uint32_t connection, std::string_view reason);

  const std::uint64_t round_;
  RequestParser parser_;  // of whole requests, for everybody
  StoreState state_;
  std::map<Node, Proxy> proxies_;
  std::unordered_map<ConnectionId, Client> clients_;
  ConnectionId next_connection_ = 1;
  std::set<Node> ready_;
  ProxyFrame fresh_;
  Request request_;
};

}  // namespace ddprun::store
