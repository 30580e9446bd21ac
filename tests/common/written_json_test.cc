// SPDX-License-Identifier: Apache-2.0
#include "common/json.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "tests/support/catch.h"

using ddprun::shown_json;
using ddprun::written_json;
namespace json = boost::json;

TEST_CASE("written_json: numbers as people write them, and texts untouched") {
  const json::value value = {{"E", "1E-3 \"E0\\"},
                             {"list", {0.0, 1e-3, -2.5, 600.0, 0, 16, -7, 1e-9, 1e20, 1234567.125}},
                             {"whole", 3.0},
                             {"none", nullptr}};
  const std::string text = written_json(value);
  CHECK(text == R"({"E":"1E-3 \"E0\\","list":[0.0,0.001,-2.5,600.0,0,16,-7,1e-09,1e+20,)"
                R"(1234567.125],"whole":3.0,"none":null})");
  CHECK(json::parse(text) == value);
  CHECK(written_json(0.5) == "0.5");
  CHECK(written_json("E") == "\"E\"");
}

TEST_CASE("written_json: characters that hide or turn text are written out, others stay") {
  const json::value value = {{"\u202Ekey", "a\u009B2J\u2066b\u200F\u061C\x7F"},
                             {"é", "€ 😀 \u00A0"}};
  const std::string text = written_json(value);
  CHECK(text == R"({"\u202ekey":"a\u009b2J\u2066b\u200f\u061c\u007f","é":"€ 😀 )"
                "\u00A0\"}");
  CHECK(json::parse(text) == value);
}

TEST_CASE("shown_json: bytes that are no UTF-8 stay as they are") {
  CHECK(shown_json("\"\xFF\xE2\u202A\x80\"") == "\"\xFF\xE2\\u202a\x80\"");
}
