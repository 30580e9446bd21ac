// SPDX-License-Identifier: Apache-2.0
// One picture, drawn with Cairo.
#pragma once

#include <cairo.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/report/drawing.h"

namespace ddprun::report {

struct Colour {
  double red = 0, green = 0, blue = 0, opacity = 1;
};

class Canvas {
 public:
  // In the units of the drawing, of which each is two pixels. Throws Error(kInvalidArgument) where
  // that is no picture's size, and, as all below, Error(kSystem) where Cairo has no memory.
  Canvas(double width, double height);

  void area(const Colour& colour, const std::vector<std::vector<Point>>& parts);
  void line(const Colour& colour, double width, bool dashed,
            const std::vector<std::vector<Point>>& parts);
  void text(const Colour& colour, double size, bool bold, Anchor anchor, Point at,
            const std::string& text);

  // Written beside `path`, then renamed. Throws Error(kSystem) naming it.
  void write(const std::string& path);

 private:
  struct Free {
    void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
    void operator()(cairo_t* cairo) const { cairo_destroy(cairo); }
  };

  void set(const Colour& colour);
  void path(const std::vector<std::vector<Point>>& parts, bool closed);

  std::unique_ptr<cairo_surface_t, Free> surface_;
  std::unique_ptr<cairo_t, Free> cairo_;
};

}  // namespace ddprun::report
