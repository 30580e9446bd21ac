// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/proxied_store.h"

#include <algorithm>

#include "common/text.h"
#include "common/throw_error.h"
#include "rendezvous/store/rate.h"

namespace ddprun::store {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::uint64_t kNoValue = ~std::uint64_t{0};

}  // namespace

RequestParser ProxiedStore::parser_of_requests() const {
  RequestParser parser(*limits_);
  // The clients did the handshake with their proxy, so the parser is past it.
  Request request;
  const std::string handshake = encoded({.opcode = Opcode::kValidate, .word = kValidateMagic});
  parser.parse(handshake, &request);
  return parser;
}

ProxiedStore::Proxy& ProxiedStore::proxy_of(Node node) {
  const auto found = proxies_.find(node);
  return found != proxies_.end() ? found->second
                                 : proxies_.emplace(node, parser_of_requests()).first->second;
}

// ---- messages from nodes ----

void ProxiedStore::receive(Node from, const ProxyFrame& frame) {
  if (frame.round != round_) return;
  Proxy& proxy = proxy_of(from);
  if (proxy.is_broken) throw Error(ErrorCode::kProtocol, "a store proxy said what makes no sense");
  const bool is_lost = !proxy.is_known && frame.received > proxy.restored_out;
  if (is_lost || !acknowledge(proxy, frame.received)) {
    throw Error(ErrorCode::kProtocol, "a store proxy has replies that are not known here");
  }
  const auto bytes = proxy.in.receive(frame.position, frame.bytes);
  if (!bytes) throw Error(ErrorCode::kProtocol, "requests of a store proxy are not known here");
  if (proxy.waiting.size() + bytes->size() > OutgoingBytes::kWindowBytes) {
    throw Error(ErrorCode::kProtocol, "a store proxy does not wait for acknowledgements");
  }
  proxy.waiting += *bytes;
  proxy.is_known = proxy.is_heard = true;
  touched_.insert(from);
}

bool ProxiedStore::is_ready(Node node) const {
  const auto found = proxies_.find(node);
  if (found == proxies_.end()) return false;
  const Proxy& proxy = found->second;
  const bool has_bytes =
      proxy.missing > 0 ? !proxy.waiting.empty() : proxy.waiting.size() >= kItemHeadBytes;
  return has_bytes && !proxy.is_broken && proxy.out.unacknowledged_bytes() < kMaxBacklogBytes;
}

ProxiedStore::Turn ProxiedStore::run(Node node, std::size_t max_requests,
                                     const Refusals& refusals) {
  Proxy& proxy = proxy_of(node);
  Turn turn;
  turn.node = node;
  turn.position = proxy.taken;
  turn.acknowledged = proxy.out.acknowledged();
  turn.refusals = refusals;
  if (proxy.is_broken) return turn;
  std::string_view rest = proxy.waiting, next = rest;
  std::uint32_t connection = proxy.connection;
  std::uint64_t missing = proxy.missing;
  std::size_t gathered = proxy.request.size();
  try {
    while (turn.num_requests < max_requests && turn.work < kTurnWork &&
           proxy.out.unacknowledged_bytes() < kMaxBacklogBytes &&
           advance(node, proxy, next, turn)) {
      rest = next;
      connection = proxy.connection;
      missing = proxy.missing;
      gathered = proxy.request.size();
    }
  } catch (const Error& error) {
    // Bytes that did not take effect count as not taken.
    proxy.connection = connection;
    proxy.missing = missing;
    keep_gathered(proxy, gathered);
    proxy.is_broken = true;
    turn.trouble = error.what();
  }
  turn.bytes = proxy.waiting.substr(0, proxy.waiting.size() - rest.size());
  proxy.waiting.erase(0, turn.bytes.size());
  proxy.taken += turn.bytes.size();
  touched_.insert(node);
  return turn;
}

void ProxiedStore::replay(const Turn& turn) {
  Proxy& proxy = proxy_of(turn.node);
  if (turn.position != proxy.taken || !acknowledge(proxy, turn.acknowledged)) {
    throw Error(ErrorCode::kProtocol, "rows of its store are missing");
  }
  Turn again = turn;
  std::string_view rest = turn.bytes;
  while (!rest.empty()) {
    if (!advance(turn.node, proxy, rest, again)) {
      throw Error(ErrorCode::kProtocol, "a row of its store ends too early");
    }
  }
  proxy.taken += turn.bytes.size();
  proxy.in.start_at(proxy.taken);
  touched_.insert(turn.node);
}

void ProxiedStore::restored() {
  for (auto& [node, proxy] : proxies_) proxy.restored_out = proxy.out.end();
  release(take_marks());  // the journal has all of it
}

// Does one step: takes an item's head, or the available bytes of one request. Returns false if it
// needs more bytes.
bool ProxiedStore::advance(Node from, Proxy& proxy, std::string_view& bytes, Turn& turn) {
  if (proxy.missing == 0) {
    const auto head = read_item_head(&bytes);
    if (!head) return false;
    proxy.connection = head->connection;
    if (head->kind == ItemKind::kClose && head->size_bytes == 0) {
      disconnect(proxy, head->connection, turn);
    } else if (head->kind == ItemKind::kClose) {
      throw Error(ErrorCode::kProtocol, "a store proxy says why a connection ends");
    } else {
      proxy.missing = head->size_bytes;
    }
    return true;
  }
  if (bytes.empty()) return false;
  const std::string_view content =
      bytes.substr(0, std::min<std::uint64_t>(proxy.missing, bytes.size()));
  const auto take = [&](std::size_t size) {
    proxy.missing -= size;
    bytes.remove_prefix(size);
  };
  const auto client = proxy.connections.find(proxy.connection);
  if (client != proxy.connections.end() && client->second == kRefused) {
    take(content.size());
    return true;
  }
  ParseStatus status;
  if (proxy.request.empty()) {
    status = proxy.parser.parse(content, &request_);
    take(status == ParseStatus::kRequest ? proxy.parser.request_bytes() : content.size());
  } else {
    // Takes only bytes that surely belong to this request. The bytes after it are for a later step.
    const std::size_t least = std::max(proxy.parser.needed_bytes(), proxy.request.size() + 1);
    const std::string_view more = content.substr(0, least - proxy.request.size());
    gather(proxy, more);
    take(more.size());
    status = proxy.parser.parse(proxy.request, &request_);
  }
  if (status == ParseStatus::kRequest) {
    carry_out(from, proxy, turn);
    keep_gathered(proxy, 0);
    return true;
  }
  if (status == ParseStatus::kMalformed) {
    throw_error(ErrorCode::kProtocol,
                "a store proxy passes on what is no request: ", proxy.parser.error());
  }
  if (proxy.missing == 0) {
    throw Error(ErrorCode::kProtocol, "a store proxy passes on a part of a request");
  }
  if (proxy.request.empty()) gather(proxy, content);
  if (!turn.refusals.growth.empty() && proxy.request.size() > kMaxFrameBytes) {
    proxy.parser = parser_of_requests();
    keep_gathered(proxy, 0);
    refuse(from, proxy, turn.refusals.growth, turn);
  }
  return true;
}

void ProxiedStore::gather(Proxy& proxy, std::string_view bytes) {
  proxy.request += bytes;
  gathered_bytes_ += bytes.size();
}

// Keeps only the first `bytes` of the gathered request.
void ProxiedStore::keep_gathered(Proxy& proxy, std::size_t bytes) {
  gathered_bytes_ -= proxy.request.size() - bytes;
  proxy.request.resize(bytes);
  proxy.request.shrink_to_fit();
}

bool ProxiedStore::acknowledge(Proxy& proxy, std::uint64_t position) {
  const std::size_t before = proxy.out.own_bytes();
  const bool is_known = proxy.out.acknowledge(position);
  own_reply_bytes_ -= before - proxy.out.own_bytes();
  return is_known;
}

void ProxiedStore::write(Proxy& proxy, std::string_view bytes) {
  proxy.out.write(bytes);
  own_reply_bytes_ += bytes.size();
}

// Carries out request_, which belongs to the item that is being read.
void ProxiedStore::carry_out(Node from, Proxy& proxy, Turn& turn) {
  if (proxy.num_refused >= kMaxRefused) {
    throw Error(ErrorCode::kProtocol, "a store proxy does not close what is refused");
  }
  ++turn.num_requests;
  const auto [entry, is_new] = proxy.connections.try_emplace(proxy.connection, next_connection_);
  if (is_new) {
    ++num_names_;
    if (!turn.refusals.clients.empty()) return refuse(from, proxy, turn.refusals.clients, turn);
    clients_[next_connection_++] = {from, proxy.connection};
  }
  const Refusals& refusals = turn.refusals;
  const bool only_counts = !refusals.growth.empty() && refusals.lets_count &&
                           request_.opcode == Opcode::kAdd && state_.has_value(request_.key);
  const std::size_t asked = state_.work_of(entry->second, request_);
  const Outcome& outcome =
      state_.step(entry->second, request_, only_counts ? std::string_view() : refusals.growth);
  turn.work += outcome.work;
  if (asked >= kLargeWork) turn.large_work += asked;
  const std::string refusal = outcome.close_reason.empty() ? ""
                                                           : concat(opcode_name(request_.opcode),
                                                                    ": ", outcome.close_reason);
  deliver(outcome);
  if (refusal.empty()) return;
  refuse(from, proxy, refusal, turn);
}

void ProxiedStore::disconnect(Proxy& proxy, std::uint32_t connection, Turn& turn) {
  const auto found = proxy.connections.find(connection);
  if (found == proxy.connections.end()) return;  // it never sent a request
  const ConnectionId gone = found->second;
  proxy.connections.erase(found);
  --num_names_;
  if (gone == kRefused) {
    --proxy.num_refused;
    return;
  }
  clients_.erase(gone);
  const Outcome& outcome = state_.disconnect(gone);
  turn.work += outcome.work;
  if (outcome.work >= kLargeWork) turn.large_work += outcome.work;
  deliver(outcome);
}

// ---- messages to nodes ----

void ProxiedStore::deliver(const Outcome& outcome) {
  for (const Reply& reply : outcome.replies) {
    const auto found = clients_.find(reply.to);
    if (found == clients_.end()) continue;
    const auto [node, connection] = found->second;
    Proxy& proxy = proxy_of(node);
    const std::size_t size = reply.bytes.size() + (reply.body ? reply.body->size() : 0);
    std::string head;
    append_item_head({connection, ItemKind::kData, size}, &head);
    write(proxy, head);
    write(proxy, reply.bytes);
    if (reply.body) proxy.out.write(reply.body);
    touched_.insert(node);
  }
}

// Refuses the connection of the item that is being read. Its further requests are ignored until the
// proxy closes it.
void ProxiedStore::refuse(Node node, Proxy& proxy, std::string_view reason, Turn& turn) {
  disconnect(proxy, proxy.connection, turn);
  proxy.connections[proxy.connection] = kRefused;
  ++proxy.num_refused;
  ++num_names_;
  std::string item;
  append_item_head({proxy.connection, ItemKind::kClose, reason.size()}, &item);
  write(proxy, item.append(reason));
  touched_.insert(node);
}

void ProxiedStore::reconnected(Node node) {
  Proxy& proxy = proxy_of(node);
  proxy.reconnect();
  touched_.insert(node);
}

std::vector<ProxiedStore::Mark> ProxiedStore::take_marks() {
  std::vector<Mark> marks;
  for (const Node node : std::exchange(touched_, {})) {
    const Proxy& proxy = proxy_of(node);
    marks.push_back({node, proxy.out.end(), proxy.taken});
  }
  return marks;
}

void ProxiedStore::release(const std::vector<Mark>& marks) {
  for (const Mark& mark : marks) {
    Proxy& proxy = proxy_of(mark.node);
    proxy.released_out = std::max(proxy.released_out, mark.said);
    proxy.released_in = std::max(proxy.released_in, mark.taken);
  }
}

std::optional<std::string> ProxiedStore::next_frame(Node to) {
  Proxy& proxy = proxy_of(to);
  return proxy.next_frame(round_, proxy.released_in, proxy.released_out);
}

// ---- snapshots ----

// The format: a version, the next client's number, the values that replies share, the proxies, the
// key space.
std::string ProxiedStore::snapshot() const {
  std::string out;
  out.reserve(total_bytes());  // avoids copies while it grows
  append_u64(kVersion, &out);
  append_u64(next_connection_, &out);
  // A thousand nodes may wait for one large value, which is written once.
  std::unordered_map<SharedValue, std::uint64_t> values;
  std::vector<SharedValue> in_order;
  for (const auto& [node, proxy] : proxies_) {
    proxy.out.each_piece([&](std::string_view, const SharedValue& value) {
      if (value && values.try_emplace(value, values.size()).second) in_order.push_back(value);
    });
  }
  append_u64(in_order.size(), &out);
  for (const SharedValue& value : in_order) append_vector(*value, &out);
  append_u64(proxies_.size(), &out);
  for (const auto& [node, proxy] : proxies_) {
    append_u64(node, &out);
    append_u64(proxy.taken, &out);
    append_u64(proxy.connection, &out);
    append_u64(proxy.missing, &out);
    append_vector(proxy.request, &out);
    append_u64(proxy.is_broken ? 1 : 0, &out);
    append_u64(proxy.out.begin(), &out);
    std::uint64_t num_pieces = 0;
    std::string pieces;
    proxy.out.each_piece([&](std::string_view bytes, const SharedValue& value) {
      ++num_pieces;
      append_u64(value ? values.at(value) : kNoValue, &pieces);
      if (!value) append_vector(bytes, &pieces);
    });
    append_u64(num_pieces, &out);
    out += pieces;
    append_u64(proxy.out.acknowledged(), &out);
    append_u64(proxy.connections.size(), &out);
    for (const auto& [name, client] : proxy.connections) {
      append_u64(name, &out);
      append_u64(client, &out);
    }
  }
  state_.save(&out);
  return out;
}

void ProxiedStore::restore(std::string_view snapshot) {
  SnapshotReader in(snapshot);
  if (const std::uint64_t version = in.integer(); version != kVersion) {
    throw Error(ErrorCode::kProtocol, "what was kept of a store is of another version");
  }
  next_connection_ = static_cast<ConnectionId>(in.integer());
  std::vector<SharedValue> values;
  for (std::uint64_t left = in.integer(); left > 0; --left)
    values.push_back(state_.hold(in.text()));
  for (std::uint64_t left = in.integer(); left > 0; --left) {
    const Node node = in.integer();
    Proxy& proxy = proxy_of(node);
    proxy.taken = in.integer();
    proxy.in.start_at(proxy.taken);
    proxy.connection = static_cast<std::uint32_t>(in.integer());
    proxy.missing = in.integer();
    gather(proxy, in.text());
    if (!proxy.request.empty()) proxy.parser.parse(proxy.request, &request_);  // to its position
    proxy.is_broken = in.integer() != 0;
    proxy.out.start_at(in.integer());
    for (std::uint64_t pieces = in.integer(); pieces > 0; --pieces) {
      const std::uint64_t value = in.integer();
      if (value == kNoValue) {
        write(proxy, in.text());
      } else if (value < values.size()) {
        proxy.out.write(values[static_cast<std::size_t>(value)]);
      } else {
        throw Error(ErrorCode::kProtocol, "what was kept of a store lacks a value");
      }
    }
    if (!acknowledge(proxy, in.integer())) {
      throw Error(ErrorCode::kProtocol, "what was kept of a store has too few replies");
    }
    for (std::uint64_t clients = in.integer(); clients > 0; --clients) {
      const auto name = static_cast<std::uint32_t>(in.integer());
      const auto client = static_cast<ConnectionId>(in.integer());
      proxy.connections[name] = client;
      ++num_names_;
      if (client == kRefused) ++proxy.num_refused;
      if (client != kRefused) clients_[client] = {node, name};
    }
    touched_.insert(node);
  }
  state_.load(in);
  if (!in.at_end()) throw Error(ErrorCode::kProtocol, "what was kept of a store is too long");
}

}  // namespace ddprun::store
