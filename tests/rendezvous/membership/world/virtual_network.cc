// SPDX-License-Identifier: Apache-2.0
#include "tests/rendezvous/membership/world/virtual_network.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ddprun::membership::testing {

VirtualNetwork::VirtualNetwork(int num_hosts, Options options)
    : options_(std::move(options)), ways_(static_cast<std::size_t>(num_hosts)) {}

void VirtualNetwork::set_latency(int host, std::chrono::microseconds each_way) {
  ways_[static_cast<std::size_t>(host)].latency = each_way;
}

void VirtualNetwork::cut(int host, bool up, bool down) {
  Way& way = ways_[static_cast<std::size_t>(host)];
  way.up_cut = way.up_cut || up;
  way.down_cut = way.down_cut || down;
}

void VirtualNetwork::heal(int host, std::chrono::microseconds after, Clock::time_point now) {
  Way& way = ways_[static_cast<std::size_t>(host)];
  way.up_cut = way.down_cut = false;
  const std::vector<ConnectionId> connections = way.connections;
  for (const ConnectionId id : connections) {
    Connection& connection = connections_.at(id);
    release(id, connection.up, true, now + after, way.latency);
    release(id, connection.down, false, now + after, way.latency);
  }
}

template <typename Frame>
void VirtualNetwork::release(ConnectionId id, Pipe<Frame>& pipe, bool up, Clock::time_point from,
                             std::chrono::microseconds latency) {
  pipe.last = std::max(pipe.last, from + latency);
  for (; pipe.num_held > 0; --pipe.num_held) options_.schedule(pipe.last, up, id);
}

ConnectionId VirtualNetwork::connect(int host) {
  const ConnectionId id = next_id_++;
  connections_[id].host = host;
  ways_[static_cast<std::size_t>(host)].connections.push_back(id);
  return id;
}

int VirtualNetwork::host_of(ConnectionId connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? -1 : found->second.host;
}

template <typename Frame>
void VirtualNetwork::send(Connection& connection, ConnectionId id, Pipe<Frame>& pipe, bool up,
                          Frame frame, Clock::time_point now) {
  const Way& way = ways_[static_cast<std::size_t>(connection.host)];
  pipe.frames.push_back(std::move(frame));
  if (up ? way.up_cut : way.down_cut) {
    ++pipe.num_held;
    return;
  }
  pipe.last = std::max(pipe.last, now + way.latency);
  options_.schedule(pipe.last, up, id);
}

void VirtualNetwork::send_up(ConnectionId id, UpFrame frame, Clock::time_point now) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.host_open) return;
  send(found->second, id, found->second.up, true, std::move(frame), now);
}

void VirtualNetwork::send_down(ConnectionId id, DownFrame frame, Clock::time_point now) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.rendezvous_open) return;
  send(found->second, id, found->second.down, false, std::move(frame), now);
}

void VirtualNetwork::close_at_host(ConnectionId id, bool politely, Clock::time_point now) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.host_open) return;
  Connection& connection = found->second;
  if (politely) {
    send_up(id, EndFrame{}, now);
  } else {  // a frame without a known time of arrival never leaves
    for (; connection.up.num_held > 0; --connection.up.num_held) connection.up.frames.pop_back();
  }
  connection.host_open = false;
  drop_if_over(id);
}

void VirtualNetwork::close_at_rendezvous(ConnectionId id, Clock::time_point now) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.rendezvous_open) return;
  send_down(id, EndFrame{}, now);
  found->second.rendezvous_open = false;
  drop_if_over(id);
}

void VirtualNetwork::arrive(bool up, ConnectionId id) {
  const auto found = connections_.find(id);
  DDPRUN_CHECK(found != connections_.end());
  Connection& connection = found->second;
  if (up) {
    UpFrame frame = std::move(connection.up.frames.front());
    connection.up.frames.pop_front();
    if (connection.rendezvous_open) options_.at_rendezvous(id, std::move(frame));
  } else {
    DownFrame frame = std::move(connection.down.frames.front());
    connection.down.frames.pop_front();
    const int host = connection.host;
    if (connection.host_open) options_.at_host(host, id, std::move(frame));
  }
  drop_if_over(id);
}

void VirtualNetwork::drop_if_over(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  if (connection.host_open || connection.rendezvous_open) return;
  if (!connection.up.frames.empty() || !connection.down.frames.empty()) return;
  std::erase(ways_[static_cast<std::size_t>(connection.host)].connections, id);
  connections_.erase(found);
}

}  // namespace ddprun::membership::testing
