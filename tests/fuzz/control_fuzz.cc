// SPDX-License-Identifier: Apache-2.0
// Fuzzes control messages. The input is lines. The first byte of each chooses one of four
// connections (or time), the rest is a message. Beyond "no crash" this must hold:
//  - the only error is Error(kProtocol);
//  - a message that is decoded, encoded and decoded again stays the same, and fits into one
//    message;
//  - the membership machine survives whatever it is told, and never waits without a deadline.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "rendezvous/membership/machine.h"
#include "rendezvous/messages/codec.h"

namespace {

using namespace ddprun;
using namespace ddprun::membership;

template <typename Decode>
auto round_trip(std::string_view text, Decode decode) -> std::optional<decltype(decode(text))> {
  try {
    const auto envelope = decode(text);
    const std::string first = encode(envelope);
    DDPRUN_CHECK(first.size() <= kMaxMessageBytes);
    DDPRUN_CHECK(encode(decode(first)) == first);
    return envelope;
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kProtocol);
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  JobTable table(MachineOptions{}, [n = 0]() mutable { return std::to_string(++n); });
  Clock::time_point now{std::chrono::hours(1)};
  while (!input.empty()) {
    const std::string_view line = input.substr(0, input.find('\n'));
    input.remove_prefix(std::min(input.size(), line.size() + 1));
    if (line.empty()) continue;
    const std::string_view text = line.substr(1);
    const auto choice = static_cast<unsigned char>(line.front());
    round_trip(text, decode_rendezvous_message);
    const auto envelope = round_trip(text, decode_agent_message);
    Event event = event::Tick{};
    const ConnectionId connection = choice % 4;
    if (envelope) {
      event = event::Message{connection, *envelope, {"10.0.0.1", "10.0.0.2", false}};
    } else if (choice % 8 == 4) {
      event = event::Closed{connection};
    } else if (choice % 8 == 5) {
      event = event::Heard{connection};
    } else if (const auto next = table.next_deadline()) {
      now = std::max(now, *next);
    }
    for (const Action& action : table.step(event, now)) {
      const auto* send = variants::get_if<action::Send>(&action);
      if (send != nullptr) round_trip(encode(send->envelope), decode_rendezvous_message);
    }
    DDPRUN_CHECK(table.idle() || table.next_deadline());
    for (const JobStatus& job : table.status()) {
      Actions asked;
      const TailKind kind = choice % 2 == 0 ? TailKind::kOutput : TailKind::kStack;
      const auto routes =
          table.ask_for_tails(job.run_id, {{choice % 8, choice % 5}, choice, kind}, asked);
      DDPRUN_CHECK(routes.size() == 2);
      std::size_t num_asked = 0;
      for (const TailRoute& route : routes) {
        DDPRUN_CHECK(route.connection.has_value() == route.why_not.empty());
        num_asked += route.connection ? 1 : 0;
      }
      DDPRUN_CHECK(asked.size() == num_asked);
    }
  }
  return 0;
}
