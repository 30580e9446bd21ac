// SPDX-License-Identifier: Apache-2.0
#include "common/written_json.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "tests/support/catch.h"

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
