// SPDX-License-Identifier: Apache-2.0
// One round's key space in the rendezvous, and the nodes' proxies that its clients come through.
// However often a proxy's connection ends and another one begins, each request takes effect once,
// and each reply arrives once. Nothing is said before release(), so that a journal can first keep
// its cause. Pure: no I/O, clock or thread.
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
#include "rendezvous/store/request_parser.h"
#include "rendezvous/store/store_state.h"

namespace ddprun::store {

class ProxiedStore {
 public:
  using Node = std::uint64_t;

  // `limits` outlives this.
  ProxiedStore(std::uint64_t round, const RequestLimits& limits)
      : round_(round), limits_(&limits) {}

  std::uint64_t round() const { return round_; }

  // Takes a node's proxy's message; ignores another round's. Nothing takes effect before run().
  // Throws Error(kProtocol): it does not fit what is here, and nothing later from that proxy will.
  void receive(Node from, const ProxyFrame& frame);

  // Why just now nothing may be added, and no new connection asks; empty: they may.
  struct Refusals {
    std::string growth, clients;
    // Digits to a number that is there may be, so that who only counts isn't ended for what others
    // have stored. False: in a turn that an older ddprund kept.
    bool lets_count = true;
  };

  // A part of what a node said, as it took effect. replay() of another ProxiedStore takes them, in
  // the order of all nodes', to become like this one.
  struct Turn {
    Node node = 0;
    std::uint64_t position = 0;  // of bytes' first one
    std::string bytes;
    std::uint64_t acknowledged = 0;  // of what the node was told
    Refusals refusals;
    std::size_t num_requests = 0;
    std::size_t work = 0;        // of all of them
    std::size_t large_work = 0;  // of large ones, and of large ends of connections (rate.h)
    std::string trouble;  // not empty: what came next makes no sense, and so will all that follows
  };
  // Carries out at most `max_requests` of what waits, kTurnWork but for the last one, and while the
  // node's replies have room.
  Turn run(Node node, std::size_t max_requests, const Refusals& refusals);
  // Whether something of the node may be carried out, with room for its replies.
  bool is_ready(Node node) const;
  // Throws Error(kProtocol): it does not follow on what is here.
  void replay(const Turn& turn);

  // A new connection of the node: what it has not acknowledged goes again.
  void reconnected(Node node);

  // How far each node may be told, given all that took effect until now.
  struct Mark {
    Node node = 0;
    std::uint64_t said = 0, taken = 0;  // positions
  };
  std::vector<Mark> take_marks();
  void release(const std::vector<Mark>& marks);
  // The next message to a node's proxy; nullopt: nothing is to be said now.
  std::optional<std::string> next_frame(Node to);

  // All that took effect as bytes, for restore() of an empty one of the same round and limits.
  std::string snapshot() const;
  // Throws Error(kProtocol): they make no sense.
  void restore(std::string_view snapshot);
  // After restore() and replay(): what nodes say from now on must fit this.
  void restored();

  // StoreState::forget_some().
  bool forget_some() { return state_.forget_some(); }

  std::size_t num_keys() const { return state_.num_keys(); }
  std::size_t num_waits() const { return state_.num_waits(); }
  // Connections of workers, also refused ones that their proxy has not closed.
  std::size_t num_clients() const { return num_names_; }
  // Keys, values (those of replies under way, too), waits, other replies under way, and requests
  // that have not all come.
  std::size_t total_bytes() const {
    return state_.total_bytes() + gathered_bytes_ + own_reply_bytes_;
  }

 private:
  struct Proxy : StreamEnd {
    explicit Proxy(RequestParser requests) : parser(std::move(requests)) {}

    std::string waiting;      // from `taken` to in.received()
    std::uint64_t taken = 0;  // all before it took effect
    // About the item that is being read.
    std::uint32_t connection = 0;
    std::uint64_t missing = 0;
    std::string request;  // as far as it has come, where that was not at once
    RequestParser parser;
    bool is_broken = false;

    std::uint64_t released_in = 0, released_out = 0;    // positions; what follows waits
    std::uint64_t restored_out = 0;                     // the end of `out` when this process began
    bool is_known = false;                              // to this process: it has said what it has
    std::map<std::uint32_t, ConnectionId> connections;  // a node chooses the names
    std::size_t num_refused = 0;                        // of them
  };
  static constexpr ConnectionId kRefused = 0;
  static constexpr std::size_t kMaxRefused = 65'536;  // that a proxy has not closed
  // Requests of a node wait while so much of its replies does.
  static constexpr std::size_t kMaxBacklogBytes = std::size_t{4} << 20;

  struct Client {
    Node node = 0;
    std::uint32_t connection = 0;  // the node's name for it
  };

  RequestParser parser_of_requests() const;
  Proxy& proxy_of(Node node);
  bool advance(Node from, Proxy& proxy, std::string_view& bytes, Turn& turn);
  void carry_out(Node from, Proxy& proxy, Turn& turn);
  void disconnect(Proxy& proxy, std::uint32_t connection, Turn& turn);
  void gather(Proxy& proxy, std::string_view bytes);
  void keep_gathered(Proxy& proxy, std::size_t bytes);
  bool acknowledge(Proxy& proxy, std::uint64_t position);
  void write(Proxy& proxy, std::string_view bytes);
  void deliver(const Outcome& outcome);
  void refuse(Node node, Proxy& proxy, std::string_view reason, Turn& turn);

  const std::uint64_t round_;
  const RequestLimits* const limits_;
  StoreState state_;
  std::unordered_map<Node, Proxy> proxies_;
  std::unordered_map<ConnectionId, Client> clients_;
  ConnectionId next_connection_ = 1;
  std::size_t gathered_bytes_ = 0;   // of all proxies' requests
  std::size_t own_reply_bytes_ = 0;  // of all proxies' `out`
  std::size_t num_names_ = 0;        // of all proxies' connections
  std::set<Node> touched_;
  Request request_;
};

}  // namespace ddprun::store
