// SPDX-License-Identifier: Apache-2.0
#include "agent/output/output_options.h"

#include "tests/support/catch.h"

namespace ddprun::agent {
namespace {

std::string filtered(const std::vector<std::string>& pieces) {
  LineFilter filter({"apple", "zzz"});
  std::string out;
  for (const std::string& piece : pieces) filter.feed(piece, "P:", out);
  filter.end("P:", out);
  return out;
}

TEST_CASE("line filter: lines with one of the texts, behind the prefix") {
  CHECK(filtered({"an apple\nnone\nzzz\n"}) == "P:an apple\nP:zzz\n");
  CHECK(filtered({"none\n", "\n"}).empty());
}

TEST_CASE("line filter: lines that come in pieces, and one that never ends") {
  CHECK(filtered({"an ap", "ple", "\nno", "ne\nan apple"}) == "P:an apple\nP:an apple\n");
  CHECK(filtered({"ap", "", "ple and\napple\n"}) == "P:apple and\nP:apple\n");
}

TEST_CASE("line filter: a line of any length needs bounded memory") {
  const std::string piece(10'000, 'x');
  std::vector<std::string> pieces(100, piece);
  pieces.insert(pieces.begin(), "apple ");
  pieces.push_back("\napple\n");
  const std::string out = filtered(pieces);
  CHECK(out.size() == 2 + LineFilter::kMaxLineBytes + 1 + 8);
  CHECK(out.ends_with("x\nP:apple\n"));
}

}  // namespace
}  // namespace ddprun::agent
