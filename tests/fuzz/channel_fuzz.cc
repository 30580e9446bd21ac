// SPDX-License-Identifier: Apache-2.0
// Fuzzes what --hosts reads: the first byte of the input chooses a kind. The rest is messages of an
// agent or a launcher, or a list or a file of hosts. Beyond "no crash" this must hold:
//  - the only error of a message is Error(kProtocol);
//  - a message that is decoded, encoded and decoded again stays the same;
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

void read_all(std::string_view bytes, channel::From from, bool has_magic) {
  channel::Decoder decoder(from);
  if (has_magic) decoder.feed(channel::kMagic);
  try {
    while (!bytes.empty()) {  // in pieces of all sizes
      const std::size_t size = bytes.size() < 7 ? bytes.size() : bytes.size() / 2;
      decoder.feed(bytes.substr(0, size));
      bytes.remove_prefix(size);
      while (const auto message = decoder.next()) {
        const std::string first = channel::encode(*message);
        channel::Decoder again(from);
        const bool brings_magic = variants::holds_alternative<channel::Hello>(*message);
        if (from == channel::From::kAgent && !brings_magic) again.feed(channel::kMagic);
        again.feed(first);
        const auto same = again.next();
        DDPRUN_CHECK(same && channel::encode(*same) == first);
      }
    }
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kProtocol);
  }
}

void check(const HostList& list) {
  DDPRUN_CHECK(!list.hosts.empty() && list.hosts.size() <= kMostHosts);
  for (const Host& host : list.hosts) {
    DDPRUN_CHECK(!host.name.empty() && host.name.front() != '-' && host.slots >= 0);
    DDPRUN_CHECK(host.name.find_first_of(" \t\r\n'\"/") == std::string::npos);
  }
}

template <typename Parse>
void read_list(Parse parse) {
  try {
    check(parse());
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kInvalidArgument);
    DDPRUN_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      read_all(bytes, channel::From::kAgent, true);
      break;
    case 1:
      read_all(bytes, channel::From::kAgent, false);
      break;
    case 2:
      read_all(bytes, channel::From::kLauncher, false);
      break;
    case 3:
      read_list([&] { return parse_hosts(bytes, "--hosts"); });
      break;
    default:
      read_list([&] { return parse_host_file(bytes, "file"); });
  }
  return 0;
}
