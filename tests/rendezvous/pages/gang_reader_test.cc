// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/pages/gang_reader.h"

#include <string>

#include "common/base64.h"
#include "tests/support/catch.h"

namespace ddprun::pages {
namespace {

// A page of a gang on n1: what came on its stdout.
gangs::GangNews page(const std::string& out, bool has_ended = false,
                     const std::string& reason = "") {
  gangs::GangNews news;
  news.state.phase = has_ended ? gangs::GangPhase::kEnded : gangs::GangPhase::kRunning;
  news.state.parts.emplace_back().node = "n1";
  gangs::NodeOutput output;
  output.at.node = "n1";
  output.out = to_base64(out);
  output.reason = reason;
  news.output = {output};
  return news;
}

gangs::GangNews first_page(bool has_ended = false) {
  gangs::GangNews news = page("", has_ended);
  news.output.clear();
  return news;
}

std::string text_of(const std::vector<GangReader::Piece>& pieces) {
  std::string text;
  for (const auto& piece : pieces) text += piece.text;
  return text;
}

TEST_CASE("GangReader: bytes that end no line mean that there may be more") {
  GangReader reader;
  CHECK(text_of(reader.take(first_page())).empty());
  CHECK(reader.has_more());  // of a node that it heard of just now
  const std::string bar(1000, '\r');
  CHECK(text_of(reader.take(page(bar))).empty());
  CHECK(reader.has_more());
  CHECK(text_of(reader.take(page("10%\nx"))) == bar + "10%\n");
  CHECK(reader.has_more());
  CHECK(text_of(reader.take(page(""))).empty());
  CHECK_FALSE(reader.has_more());
  CHECK(text_of(reader.take_rest()) == "x");
  CHECK(text_of(reader.take_rest()).empty());
}

TEST_CASE("GangReader: at the gang's end what has no line's end comes, too") {
  GangReader reader;
  reader.take(first_page(true));
  CHECK(text_of(reader.take(page("no end", true))).empty());
  CHECK_FALSE(reader.is_over());
  CHECK(text_of(reader.take(page("", true))) == "no end");
  CHECK(reader.is_over());
}

TEST_CASE("GangReader: a node that was away for one page is no trouble at the end") {
  GangReader reader;
  reader.take(first_page());
  reader.take(page("", false, "node n1 is not connected"));
  CHECK(reader.troubles() == std::vector<std::string>{"node n1 is not connected"});
  reader.take(page("back\n"));
  CHECK(reader.troubles().empty());
}

}  // namespace
}  // namespace ddprun::pages
