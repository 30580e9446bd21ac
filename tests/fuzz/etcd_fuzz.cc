// SPDX-License-Identifier: Apache-2.0
// Fuzzes what comes from etcd. The first byte of the input chooses a kind. The rest is an answer of
// etcd's gateway, one of our own values in it, or an earlier leader's keys ("key\tvalue" lines).
// Beyond "no crash" this must hold:
//  - an answer is parsed, refused by etcd, or Error(kProtocol);
//  - a decoded value is encoded to the same bytes;
//  - a journal is refused with an Error, or usable: later commits are there again, and losses are
//    said once.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "common/byte_text.h"
#include "common/check.h"
#include "common/error.h"
#include "rendezvous/ha/etcd_codec.h"
#include "rendezvous/ha/etcd_journal.h"
#include "tests/rendezvous/ha/model_store.h"

namespace {

using namespace ddprun;
using namespace ddprun::ha;
using testing::FaultyStore;
using testing::ModelKeys;

template <typename Parse>
void parse(Parse call) {
  try {
    call();
  } catch (const EtcdRefusal& refusal) {
    DDPRUN_CHECK(std::string_view(refusal.what()).find('\n') == std::string_view::npos);
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kProtocol);
    DDPRUN_CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

void parse_answer(unsigned which, std::string_view text) {
  switch (which) {
    case 0:
      return parse([&] { parse_range(text); });
    case 1:
      return parse([&] { parse_txn(text, text.size() % 3); });
    case 2:
      return parse([&] { parse_grant(text), parse_done(text); });
    case 3:
      return parse([&] { parse_keep_alive(text); });
    case 4:
      return parse([&] { parse_watch(text); });
    default:
      return parse([&] { parse_refusal(text); });
  }
}

void decode_value(std::string_view text) {
  if (const auto bytes = from_base64(text)) DDPRUN_CHECK(to_base64(*bytes) == text);
  if (const auto parts = decode_parts(text))
    DDPRUN_CHECK(decode_parts(encode_parts(*parts)) == parts);
  if (const auto rows = decode_log(text)) DDPRUN_CHECK(encode_log(*rows) == text);
  decode_clock(text);
  decode_row(text);
}

constexpr char kPrefix[] = "p";

std::unique_ptr<EtcdJournal> lead(ModelKeys& keys, testing::Random& random) {
  const std::int64_t leadership = keys.lead(leader_key(kPrefix));
  return std::make_unique<EtcdJournal>(std::make_unique<FaultyStore>(keys, random, 0), "etcd",
                                       kPrefix, leadership, EtcdJournal::Limits{3, 64, 20});
}

void use_journal(std::string_view text) {
  testing::Random random(1);
  ModelKeys keys;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t end = line.find('\t');
    if (end == std::string_view::npos) continue;
    keys.apply({}, {{std::string(kPrefix) + "/" + std::string(line.substr(0, end)),
                     std::string(line.substr(end + 1))}});
  }
  journal::Rows rows;
  try {
    const auto leader = lead(keys, random);
    rows = leader->load().rows;
    journal::Batch batch{{"new", std::string(100, 'n')}, {"b", "2"}, {"c", "3"}, {"d", "4"}};
    leader->commit(batch);
    leader->commit({{"b", "5"}});
    for (const auto& row : batch) rows[row.key] = *row.content;
    rows["b"] = "5";
  } catch (const Error& error) {
    DDPRUN_CHECK(error.code() == ErrorCode::kUnsupported);
    return;
  }
  const journal::Content again = lead(keys, random)->load();
  DDPRUN_CHECK(again.losses.empty());
  DDPRUN_CHECK(again.rows == rows);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const unsigned which = data[0] % 8U;
  if (which == 7) {
    use_journal(text);
  } else if (which == 6) {
    decode_value(text);
  } else {
    parse_answer(which, text);
  }
  return 0;
}
