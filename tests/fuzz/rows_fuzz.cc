// SPDX-License-Identifier: Apache-2.0
// Fuzzes a journal's rows of the queue for standing agents and of jobs' stores. The input is a byte
// that chooses a kind, then changes of whole rows. A change is a row's name up to a 0, its size in
// two bytes, its content. Beyond "no crash" this must hold. Each row that makes no sense is given
// up with one line, or one call. The next start takes all rows that were kept.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "rendezvous/daemon/proxied_stores.h"
#include "rendezvous/gangs/gang_queue.h"
#include "rendezvous/journal/row.h"
#include "rendezvous/store/byte_stream.h"
#include "rendezvous/store/request.h"

namespace {

using namespace ddprun;
using gangs::GangActions;
using gangs::GangQueue;
using journal::Rows;
using rendezvous::ProxiedStores;

gangs::GangTime at(int seconds) {
  return {Clock::time_point(std::chrono::hours(1) + std::chrono::seconds(seconds)),
          1'000'000 + seconds * 1000};
}

// The rows of a gang that runs on two nodes, one that waits, and one that has ended.
const Rows& whole_queue() {
  static const Rows made = [] {
    GangQueue queue({});
    GangActions out;
    Rows rows;
    for (const char* name : {"n1", "n2"}) {
      gangs::NodeHello hello;
      hello.node = hello.instance = name;
      hello.user = "u";
      hello.uid = 1;
      hello.slots = 4;
      queue.node_came(name[1], hello, "u", "10.0.0.1:1", at(0), out);
    }
    for (const char* id : {"over", "runs", "waits"}) {
      gangs::GangSpec spec;
      spec.id = id;
      spec.user = "u";
      spec.uid = 1;
      spec.min_nodes = spec.max_nodes = 2;
      spec.workers = "4";
      spec.arguments = {"--", "true"};
      spec.environment = {"A=b"};
      spec.directory = "/";
      queue.submit(spec, "u", at(1), out);
      if (id == std::string_view("over")) queue.cancel(id, "u", at(2), out);
      for (const gangs::ConnectionId node : {'1', '2'}) {
        if (id == std::string_view("over")) queue.part_ended(node, {id, 143, ""}, at(3), out);
        if (id == std::string_view("runs")) queue.part_started(node, id, at(3), out);
      }
    }
    journal::apply_batch(queue.take_changes(), rows);
    return rows;
  }();
  return made;
}

std::size_t restore_queue(Rows& rows, std::size_t& num_gangs) {
  GangQueue queue({});
  GangActions out;
  queue.restore(rows, at(10), out);
  const auto num_lost = std::ranges::count_if(out, [](const gangs::GangAction& action) {
    const auto* log = variants::get_if<gangs::gang_action::Log>(&action);
    return log != nullptr && log->level == LogLevel::kError;
  });
  journal::apply_batch(queue.take_changes(), rows);
  num_gangs = queue.gangs().size();
  // No agent comes back, and time goes on.
  for (int i = 0; i < 20; ++i) {
    const auto next = queue.next_deadline();
    if (!next) break;
    queue.tick({std::max(*next, at(10).now), 2'000'000}, out);
    for (const auto& [number, gang] : queue.gangs()) queue.waits_for(gang);
    queue.take_changes();
  }
  return static_cast<std::size_t>(num_lost);
}

void check_queue(Rows rows) {
  std::size_t before = 0, after = 0;
  restore_queue(rows, before);
  DDPRUN_CHECK(restore_queue(rows, after) == 0);
  DDPRUN_CHECK(before == after);
}

ProxiedStores::Options store_options() {
  ProxiedStores::Options options;
  options.is_journalled = true;
  options.send = [](ProxiedStores::ConnectionId, std::string) {};
  options.trouble = [](ProxiedStores::ConnectionId, std::string) {};
  return options;
}

// The rows of one job in its second round: two nodes, keys, and a client that waits for another
// one's key.
const Rows& whole_store() {
  static const Rows made = [] {
    ProxiedStores stores(store_options());
    Rows rows;
    for (const ProxiedStores::ConnectionId connection : {1, 2}) {
      std::string requests;
      const auto add = [&](const store::Request& request) {
        const std::string bytes = encoded(request);
        store::append_item_head({1, store::ItemKind::kData, bytes.size()}, &requests);
        requests += bytes;
      };
      store::Request set{.opcode = store::Opcode::kSet};
      set.key = connection == 1 ? "a" : "b";
      set.value = "value";
      add(set);
      store::Request wait{.opcode = store::Opcode::kWait};
      wait.keys = {"c"};
      add(wait);
      const auto seat = [&]() -> std::optional<membership::Seat> {
        membership::Seat made_up;
        made_up.job = 1;
        made_up.round = 2;
        made_up.node = connection;
        made_up.store = membership::StoreMode::kProxy;
        return made_up;
      };
      stores.received(connection, seat, store::encode_frame({2, 0, 0, requests}), at(0).now);
    }
    journal::apply_batch(stores.take_changes(), rows);
    return rows;
  }();
  return made;
}

std::size_t restore_stores(Rows& rows) {
  ProxiedStores stores(store_options());
  std::size_t num_lost = 0;
  stores.restore(rows, [&](std::uint64_t, const std::string&) { ++num_lost; });
  journal::apply_batch(stores.take_changes(), rows);
  return num_lost;
}

void check_stores(Rows rows) {
  restore_stores(rows);
  DDPRUN_CHECK(restore_stores(rows) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  set_log_level(LogLevel::kError);
  if (size == 0) return 0;
  const bool is_queue = data[0] % 2 == 0;
  Rows rows = is_queue ? whole_queue() : whole_store();
  DDPRUN_CHECK(!rows.empty());
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\0');
    if (end == bytes.npos) break;
    const std::string name(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
    if (bytes.size() < 2) break;
    const auto low = static_cast<unsigned char>(bytes[0]),
               high = static_cast<unsigned char>(bytes[1]);
    const std::string_view content = bytes.substr(2, low + 256U * high);
    bytes.remove_prefix(2 + content.size());
    rows[name] = std::string(content);
  }
  if (is_queue) {
    check_queue(std::move(rows));
  } else {
    check_stores(std::move(rows));
  }
  return 0;
}
