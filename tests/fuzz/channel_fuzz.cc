// SPDX-License-Identifier: Apache-2.0
// Fuzzes what --hosts reads: the first byte of the input chooses whose messages the rest is (an
// agent's, a launcher's) or whether it is a list or a file of hosts. What must hold beyond "no
// crash":
//  - the only error of a message is Error(kProtocol);
//  - what was decoded, encoded and decoded again is the same;
//  - a list of hosts either has one problem of one line, or hosts that ssh can be given.
#include <cstdint>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "launcher/hosts/channel_codec.h"
#include "launcher/hosts/host_list.h"

namespace {

using namespace ddprun;
using namespace ddprun::launcher;

template <typename Next>
void read_all(std::string_view bytes, bool has_magic, Next next) {
  channel::Decoder decoder(has_magic);
  try {
    while (!bytes.empty()) {  // in pieces of all sizes
      const std::size_t size = bytes.size() < 7 ? bytes.size() : bytes.size() / 2;
      decoder.feed(bytes.substr(0, size));
      bytes.remove_prefix(size);
      while (const auto message = next(decoder)) {
        const std::string first = channel::encode(*message);
        channel::Decoder again(false);
        again.feed(first);
        const auto same = next(again);
        DDPRUN_CHECK(same && channel::encode(*same) == first);
      }
    }
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kProtocol);
  }
}

void check(const HostList& list) {
  DDPRUN_CHECK(list.problem.find('\n') == std::string::npos);
  if (!list.problem.empty()) return;
  DDPRUN_CHECK(!list.hosts.empty() && list.hosts.size() <= kMostHosts);
  for (const Host& host : list.hosts) {
    DDPRUN_CHECK(!host.name.empty() && host.name.front() != '-' && host.slots >= 0);
    DDPRUN_CHECK(host.name.find_first_of(" \t\r\n'\"/") == std::string::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      read_all(bytes, false, [](channel::Decoder& d) { return d.next_from_agent(); });
      break;
    case 1:
      read_all(bytes, true, [](channel::Decoder& d) { return d.next_from_agent(); });
      break;
    case 2:
      read_all(bytes, false, [](channel::Decoder& d) { return d.next_from_launcher(); });
      break;
    case 3:
      check(parse_hosts(bytes, "--hosts"));
      break;
    default:
      check(parse_host_file(bytes, "file"));
  }
  return 0;
}
