// SPDX-License-Identifier: Apache-2.0
// Fuzzes what the ends of a mirror say to each other. The first byte of the input chooses: a
// standby's message, a leader's, parts of transfers (each begins with its size in two bytes), rows,
// or a row of leader_rows.h. What must hold beyond "no crash":
//  - it is taken, or Error(kProtocol) with one line;
//  - what was decoded is encoded as it was, or as what means the same;
//  - transfers come in their order, and none of their rows is of leader_rows.h.
#include <cstdint>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/error.h"
#include "rendezvous/ha/leader_rows.h"
#include "rendezvous/ha/mirror_codec.h"
#include "rendezvous/ha/mirror_rows.h"

namespace {

using namespace ddprun;
using namespace ddprun::ha;

template <typename Decode>
void decode(Decode call) {
  try {
    call();
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kProtocol);
    DDPRUN_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

void take_standby_message(std::string_view text) {
  const auto message = mirror::decode_standby_message(text);
  const std::string again = encode(message);
  DDPRUN_CHECK(encode(mirror::decode_standby_message(again)) == again);
}

void take_leader_message(std::string_view text) {
  const auto message = mirror::decode_leader_message(text);
  const std::string again = encode(message);
  DDPRUN_CHECK(encode(mirror::decode_leader_message(again)) == again);
}

void take_parts(std::string_view bytes) {
  mirror::TransferReader reader;
  std::uint64_t number = 0;
  bool is_open = false;
  while (bytes.size() >= 2) {
    const std::size_t size =
        static_cast<unsigned char>(bytes[0]) * 256U + static_cast<unsigned char>(bytes[1]);
    const std::string_view frame = bytes.substr(2, size);
    bytes.remove_prefix(2 + frame.size());
    const auto step = reader.take(frame);
    DDPRUN_CHECK(step.begins != is_open);
    DDPRUN_CHECK(step.number == number + (step.begins ? 1 : 0));
    number = step.number;
    is_open = !step.ends;
    for (const auto& row : step.rows) DDPRUN_CHECK(!is_leader_row(row.key) && !row.key.empty());
    DDPRUN_CHECK(encode(mirror::decode_part(frame)) == frame);
  }
}

void take_rows(std::string_view bytes) {
  const auto rows = mirror::rows_of(bytes);
  std::string again;
  for (const auto& row : rows) mirror::add_row(row, again);
  DDPRUN_CHECK(again == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      decode([&] { take_standby_message(bytes); });
      break;
    case 1:
      decode([&] { take_leader_message(bytes); });
      break;
    case 2:
      decode([&] { take_parts(bytes); });
      break;
    case 3:
      decode([&] { take_rows(bytes); });
      break;
    default:
      if (const auto synced = decode_synced_row(bytes)) {
        const std::string row = encode_synced_row(*synced);
        const auto again = decode_synced_row(row);  // a long name is cut
        DDPRUN_CHECK(again && again->term == synced->term && encode_synced_row(*again) == row);
      }
      decode_standby_row(bytes);
  }
  return 0;
}
