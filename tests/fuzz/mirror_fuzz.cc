// SPDX-License-Identifier: Apache-2.0
// Fuzzes what a pair's two sides say to each other. The first byte of the input chooses: a
// caller's message, one of who was called, parts of transfers (each begins with its size in two
// bytes), rows, or a row of leader_rows.h. What must hold beyond "no crash":
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
#include "rendezvous/ha/mirror_transfer.h"

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

void take_caller_message(std::string_view text) {
  const auto message = mirror::decode_caller_message(text);
  const std::string again = encode(message);
  DDPRUN_CHECK(encode(mirror::decode_caller_message(again)) == again);
}

void take_called_message(std::string_view text) {
  const auto message = mirror::decode_called_message(text);
  const std::string again = encode(message);
  DDPRUN_CHECK(encode(mirror::decode_called_message(again)) == again);
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

// A row that is one is encoded as what is the same: a long name is cut.
template <typename Decode, typename Encode>
void take_row(std::string_view bytes, Decode decode_row, Encode encode_row) {
  const auto row = decode_row(bytes);
  if (!row) return;
  const std::string encoded = encode_row(*row);
  const auto again = decode_row(encoded);
  DDPRUN_CHECK(again && encode_row(*again) == encoded);
}

void take_leader_rows(std::string_view bytes) {
  take_row(bytes, decode_term_row, encode_term_row);
  take_row(bytes, decode_synced_row, encode_synced_row);
  take_row(bytes, decode_standby_row, encode_standby_row);
  take_row(bytes, decode_copy_row, encode_copy_row);
  take_row(bytes, decode_given_up_row, encode_given_up_row);
  for (const char* key : {kTermRow, kSyncedRow, kCopyRow, kGivenUpRow, kStandbyRow}) {
    const LeaderRows rows = read_leader_rows({{key, std::string(bytes)}});
    const bool is_of_term = rows.kind == RowsKind::kLeads || rows.kind == RowsKind::kSynced;
    DDPRUN_CHECK(is_of_term == is_line_of(rows.term, rows.line));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      decode([&] { take_caller_message(bytes); });
      break;
    case 1:
      decode([&] { take_called_message(bytes); });
      break;
    case 2:
      decode([&] { take_parts(bytes); });
      break;
    case 3:
      decode([&] { take_rows(bytes); });
      break;
    default:
      take_leader_rows(bytes);
  }
  return 0;
}
