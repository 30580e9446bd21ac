// SPDX-License-Identifier: Apache-2.0
// One round's key space in the rendezvous, and the nodes' proxies through which its clients
// connect. Each request takes effect once and each reply arrives once, however often a proxy
// reconnects. Nothing is sent before release(), so that a journal can first keep the requests
// behind it. Pure: no I/O, clock or thread.
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

  // `limits` must outlive this.
  ProxiedStore(std::uint64_t round, const RequestLimits& limits)
      : round_(round), limits_(&limits) {}

  std::uint64_t round() const { return round_; }

  // Takes a message of a node's proxy, and ignores one of another round. Nothing takes effect
  // before run(). Throws Error(kProtocol) if it does not fit the state here; nothing later from
  // that proxy fits either.
  void receive(Node from, const ProxyFrame& frame);

  // The reasons why at present nothing may be added (`growth`), and no new connection is served
  // (`clients`). Empty: allowed.
  struct Refusals {
    std::string growth, clients;
    // An ADD to an existing number is allowed even then, so that a client that only counts isn't
    // refused because of other clients' data. False: in a turn that an older ddprund kept.
    bool lets_count = true;
  };

  // A part of a node's stream, as it took effect. Another ProxiedStore becomes like this one if its
  // replay() gets the turns of all nodes, in order.
  struct Turn {
    Node node = 0;
    std::uint64_t position = 0;  // of the first of `bytes`
    std::string bytes;
    std::uint64_t acknowledged = 0;  // position in the replies
    Refusals refusals;
    std::size_t num_requests = 0;
    std::size_t work = 0;        // of all requests
    std::size_t large_work = 0;  // of large requests and disconnections (rate.h)
    std::string trouble;  // not empty: the next bytes are invalid, and so are all that follow
  };
  // Carries out waiting requests of the node, at most `max_requests`. It stops after the one that
  // reaches kTurnWork, or when the node's replies have no more room.
  Turn run(Node node, std::size_t max_requests, const Refusals& refusals);
  // Returns whether bytes of the node wait and its replies have room.
  bool is_ready(Node node) const;
  // Carries out a kept turn. Throws Error(kProtocol) if it does not follow on the state here.
  void replay(const Turn& turn);

  // Called on a new connection of the node: all that the node has not acknowledged is sent again.
  void reconnected(Node node);

  // Positions in a node's streams: all that took effect until take_marks(). release() allows
  // sending replies up to `said`, and acknowledging requests up to `taken`.
  struct Mark {
    Node node = 0;
    std::uint64_t said = 0, taken = 0;  // positions
  };
  std::vector<Mark> take_marks();
  void release(const std::vector<Mark>& marks);
  // Returns the next message to a node's proxy; nullopt: there is nothing to send now.
  std::optional<std::string> next_frame(Node to);

  // Returns the state as bytes, for restore() of an empty ProxiedStore of the same round and
  // limits.
  std::string snapshot() const;
  // Throws Error(kProtocol) if the bytes are invalid.
  void restore(std::string_view snapshot);
  // Called after restore() and replay(): nodes' later messages must fit this state.
  void restored();

  // See StoreState::forget_some().
  bool forget_some() { return state_.forget_some(); }

  std::size_t num_keys() const { return state_.num_keys(); }
  std::size_t num_waits() const { return state_.num_waits(); }
  // The number of workers' connections, with refused ones that their proxy has not closed yet.
  std::size_t num_clients() const { return num_names_; }
  // The bytes of keys, values (also those that only a reply holds), waits, other replies under way
  // and incomplete requests.
  std::size_t total_bytes() const {
    return state_.total_bytes() + gathered_bytes_ + own_reply_bytes_;
  }

 private:
  struct Proxy : StreamEnd {
    explicit Proxy(RequestParser requests) : parser(std::move(requests)) {}

    std::string waiting;      // the bytes from `taken` to in.received()
    std::uint64_t taken = 0;  // all bytes before it took effect
    // The state of the item that is being read.
    std::uint32_t connection = 0;
    std::uint64_t missing = 0;
    std::string request;  // the part that arrived, if it came in several
    RequestParser parser;
    bool is_broken = false;

    std::uint64_t released_in = 0, released_out = 0;    // positions; later bytes wait
    std::uint64_t restored_out = 0;                     // the end of `out` after restored()
    bool is_known = false;                              // it has sent a message to this process
    std::map<std::uint32_t, ConnectionId> connections;  // by the node's names
    std::size_t num_refused = 0;                        // of these
  };
  static constexpr ConnectionId kRefused = 0;
  static constexpr std::size_t kMaxRefused = 65'536;  // refused, not yet closed by the proxy
  // A node's requests wait while so many bytes of its replies wait.
  static constexpr std::size_t kMaxBacklogBytes = std::size_t{4} << 20;

  struct Client {
    Node node = 0;
    std::uint32_t connection = 0;  // the node's number for it
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
