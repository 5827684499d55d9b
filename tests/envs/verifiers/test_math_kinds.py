"""What equals what, by kind of answer: pairs of our own for each rule of `math_compare`, right and wrong."""
# ruff: noqa: RUF001 - signs that look alike are among the cases

import pytest

from slipstream.envs.verifiers.math_compare import same_text

# kind: pairs of gold and answer that say the same, and pairs that do not
SAME: dict[str, list[tuple[str, str]]] = {
    "integer": [
        ("7", "7."), ("7", "+7"), ("-3", "- 3"), ("120", "5!"), ("6", "3!"), ("15", r"\binom{6}{2}"), ("15", r"{6 \choose 2}"),
        ("64", "4^3"), ("9", r"3\times3"), ("9", "(9)"), ("9", "[9]"), ("3", r"\lfloor \pi \rfloor"), ("12", r"\mathbf{12}"),
        ("12", "0012"), ("13", "13 "), ("17", r"\underline{17}"), ("17", r"17\text{.}"), ("5", r"\left|-5\right|"),
        ("6", r"\gcd(12,18)"), ("2", "1+1"),
    ],
    "decimal": [
        ("0.125", r"\frac18"), ("0.1", "0.10"), ("2.5", "2,5"), (r"0.\overline{6}", r"\frac23"), (r"0.1\overline{6}", r"\frac16"),
        ("-0.5", "-.5"), (r"1.\overline{09}", r"\frac{12}{11}"), ("3.0", "3"), ("12.50", "12.5"), ("99.9", "99.90"),
        ("0.001", "10^{-3}"),
    ],
    "fraction": [
        (r"\frac{2}{3}", "2/3"), (r"\frac{2}{3}", r"\frac{4}{6}"), (r"\frac{2}{3}", r"\frac23"), (r"\frac{2}{3}", "2:3"),
        (r"-\frac{1}{2}", r"\frac{1}{-2}"), (r"-\frac{1}{2}", "-(1/2)"), (r"\frac{7}{3}", r"2\frac13"), (r"\frac{a}{b}", "a/b"),
        (r"\frac{5}{12}", r"\dfrac5{12}"), (r"\frac{17}{4}", "4.25"), (r"\frac{1}{3}", r"\frac{1/3}{1}"),
        (r"\frac{3}{7}", r"{3\over 7}"), (r"\frac{3}{7}", r"\frac{3}{7}\,"), (r"\frac{12}{35}", "12 / 35"),
        (r"\frac{1}{2}", r"\frac{\frac12}{1}"),
    ],
    "mixed_number": [
        (r"5\frac{2}{3}", r"\frac{17}{3}"), (r"5\frac{2}{3}", "5 2/3"), (r"5\frac{2}{3}", r"5 + \frac{2}{3}"), (r"-1\frac12", "-1.5"),
        (r"\frac{9}{4}", "2 1/4"), (r"10\frac{1}{4}", "10.25"), (r"12\frac12", r"12\,\frac{1}{2}"),
    ],
    "percent": [
        (r"15\%", "15%"), (r"15\%", r"15\text{ percent}"), (r"15\%", "0.15"), ("15", r"15\%"), (r"12.5\%", r"12\frac12\%"),
        ("0.3", r"30\%"), (r"33\frac{1}{3}\%", r"\frac{100}{3}\%"), ("75", "75 percent"),
    ],
    "units": [
        (r"12\text{ cm}", "12"), ("12", r"12\,\mathrm{cm}"), ("12", "12 cm"), (r"12\text{ cm}", r"12\text{ centimeters}"),
        (r"30\text{ m/s}", "30"), (r"30\text{ m/s}", r"30\text{ meters per second}"), ("24", r"24\text{ cm}^3"),
        (r"24\text{ cm}^3", r"24\text{ cubic centimeters}"), ("8", "8 dogs"), (r"60\text{ mph}", "60 miles per hour"),
        (r"2\text{ hours}", r"120\text{ minutes}"), (r"4\pi\text{ cm}", r"4\pi"), (r"4\sqrt{3}", r"4\sqrt{3}\text{ cm}^2"),
        (r"100\text{ square feet}", r"100\text{ ft}^2"), ("36", "36 square units"), (r"3 \text{ liters}", r"3 \text{ L}"),
        (r"7\text{ days}", r"1\text{ week}"), (r"45\text{ minutes}", r"45 \text{ min}"),
    ],
    "currency": [
        (r"\$25", "25"), ("25", r"\$25"), ("25", "$25.00"), (r"\$3.50", "3.5"), ("40", r"40\text{ dollars}"), (r"\$1{,}250", "1250"),
        ("1250", r"\$1,250"), ("99", "£99"), ("75", r"75\text{ cents}"), ("-5", r"-\$5"), (r"\$20", r"20\text{ dollars}"),
    ],
    "thousands": [
        ("12345", "12,345"), ("12345", "12{,}345"), ("12345", r"12\,345"), ("1234567", "1,234,567"), ("1,234", "1234"),
        ("2500.5", "2,500.5"), ("1000000", "1 000 000"), ("100,200,300", "100, 200, 300"), ("(1,200)", "(1, 200)"), ("1,024", "1024"),
    ],
    "scientific": [
        ("4500", r"4.5\times 10^3"), (r"4.5\times 10^3", "4.5e3"), ("0.00045", r"4.5\cdot10^{-4}"), (r"2\times10^{6}", "2,000,000"),
        (r"3.0\times 10^{8}", r"3\times10^8"), ("1e3", "1000"), (r"6.02\times10^{23}", "6.02e23"), ("1.5e-7", r"1.5 \times 10^{-7}"),
        ("10^{-9}", "0.000000001"), ("5000", "5 x 10^3"), ("5000", "5*10^3"),
    ],
    "radical": [
        (r"\sqrt{18}", r"3\sqrt2"), (r"\frac{\sqrt5}{5}", r"\frac1{\sqrt5}"), (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
        (r"\sqrt{3}", "3^{1/2}"), (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"), ("5", r"\sqrt{25}"), ("-2", r"\sqrt[3]{-8}"),
        (r"\sqrt{10}", "sqrt(10)"), (r"\sqrt{10}", "sqrt10"), (r"\sqrt{10}", r"\sqrt{ 10 }"), (r"3\sqrt{5}-1", r"-1+3\sqrt{5}"),
        (r"\sqrt{\frac{2}{3}}", r"\frac{\sqrt6}{3}"), (r"2\sqrt[4]{3}", r"\sqrt[4]{48}"), ("3", r"3\sqrt{1}"),
        (r"10\sqrt{2}", r"\sqrt{200}"),
    ],
    "pi": [
        (r"3\pi", r"\pi\cdot3"), (r"3\pi", "3pi"), (r"3\pi", "3*pi"), (r"\frac{\pi}{4}", "pi/4"), (r"\frac{\pi}{4}", r"\frac14\pi"),
        (r"\frac{2\pi}{3}", r"\frac{2}{3}\pi"), (r"16\pi-32", r"16(\pi-2)"), (r"2\pi", r"360^\circ"),
    ],
    "exponent_log": [
        ("3^4", "81"), ("2^{-3}", r"\frac18"), (r"\log_3 81", "4"), (r"\log_{2}{32}", "5"), ("e^3", "e^{3}"), (r"\ln 9", r"2\ln 3"),
        ("x^{a+b}", "x^a x^b"), (r"\frac{1}{e^2}", "e^{-2}"), ("27^{1/3}", "3"), (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
        ("2^{100}", "4^{50}"), (r"e^{\ln 5}", "5"), (r"\lg 1000", "3"), ("7^{2023}", r"7\cdot7^{2022}"),
    ],
    "trig": [
        (r"\sin^2 x+\cos^2 x", "1"), (r"\cos 2x", r"1-2\sin^2 x"), (r"\tan x", r"\frac{\sin x}{\cos x}"),
        (r"\frac{\sqrt3}{2}", r"\sin 60^\circ"), (r"\arctan 2", r"\tan^{-1} 2"), (r"\sin(x+y)", r"\sin x\cos y+\cos x\sin y"),
        (r"\cos\frac{\pi}{3}", "1/2"), (r"\sec x", r"\frac{1}{\cos x}"), (r"\csc^2 x", r"1+\cot^2 x"),
        (r"\cos 20^\circ", r"\sin 70^\circ"), (r"\tan 15^\circ", r"2-\sqrt3"),
    ],
    "complex": [
        ("2-3i", "-3i+2"), (r"\frac{1+i}{2}", r"\frac12+\frac12 i"), ("i^2", "-1"), ("(1+i)^2", "2i"), (r"e^{i\pi}", "-1"),
        ("1+i,1-i", r"1\pm i"), ("-i", r"\frac{1}{i}"), (r"\sqrt{-4}", "2i"), ("3 + 4i", "3+4 i"),
        (r"\cos 60^\circ + i\sin 60^\circ", r"\frac12+\frac{\sqrt3}{2}i"),
    ],
    "infinity": [
        (r"\infty", "infinity"), (r"-\infty", r"- \infty"), (r"\infty", "∞"), (r"+\infty", r"\infty"),
        (r"-\infty", r"\text{negative infinity}"),
    ],
    "interval": [
        ("(2,5)", "2<x<5"), ("(2,5]", r"2<x\le5"), ("[2,5]", r"\{x \mid 2\le x\le 5\}"), (r"(-\infty,3)", "x<3"), (r"(3,\infty)", "x>3"),
        (r"(-\infty,1)\cup(2,\infty)", r"x<1\text{ or }x>2"), (r"(-\infty,1)\cup(2,\infty)", r"x\in(-\infty,1)\cup(2,\infty)"),
        ("(-1,1)", "|x|<1"), ("[1,5]", r"|x-3|\le 2"), ("(-2,2)", "x^2<4"), (r"(-\infty,-2)\cup(2,\infty)", "|x|>2"),
        (r"(-\infty,0)\cup(0,\infty)", r"x\neq 0"), (r"\mathbb{R}", r"(-\infty, \infty)"), (r"\mathbb{R}\setminus\{1\}", r"x \ne 1"),
        (r"\mathbb{R}\setminus\{1\}", r"(-\infty,1)\cup(1,\infty)"), (r"[0,1]\cup[1,2]", "[0,2]"), ("[0,1]", "[0,1.0]"),
        (r"\left[0,\frac12\right]", r"0 \leq t \leq 0.5"), ("[-3,3]", r"-3 \leqslant x \leqslant 3"),
        (r"[2, \infty)", r"\{x : x \geq 2\}"), ("(1,2)", "1 < y < 2"), (r"\emptyset", r"\{\}"),
        (r"(-\infty, 2) \cup (2, 3)", r"x < 3, x \ne 2"), (r"[0,\pi]", r"0\le\theta\le\pi"),
        (r"(-1, 0) \cup (0, 1)", r"-1<x<0 \text{ or } 0<x<1"),
    ],
    "inequality": [
        ("x>3", "3<x"), (r"x\ge 3", "x >= 3"), ("2x>6", "x>3"), ("-x<2", "x>-2"), ("1<x<4", "4>x>1"), ("x<2", r"x\in(-\infty,2)"),
        ("a+b>c", "c<a+b"), (r"x \le -1 \text{ or } x \ge 4", r"x \ge 4 \text{ or } x \le -1"), ("x+y<2", "2x+2y<4"),
        ("x-y<2", "y-x>-2"), (r"m \le \frac{1}{2}", r"m \leq 0.5"),
    ],
    "set": [
        (r"\{1,2\}", r"\{2,1\}"), (r"\{1,2\}", "1, 2"), (r"\{1,2\}", r"\{1,2,2\}"), (r"\{-3,3\}", r"\{\pm3\}"), (r"\{7\}", "7"),
        (r"\{1,2\}", r"1\text{ and }2"), (r"\{a,b\}", r"\{b,a\}"), (r"\{0,1\}", r"\left\{0,1\right\}"), (r"\{(0,1)\}", "(0,1)"),
        (r"\emptyset", r"\varnothing"), (r"\{1,2\}", r"x\in\{1,2\}"), (r"\{\sqrt2,-\sqrt2\}", r"\pm\sqrt2"),
    ],
    "list": [
        ("2,3", "3,2"), ("2,3", r"x=2\text{ or }x=3"), ("2,3", "x=2, x=3"), ("2,3", "2 and 3"), (r"\frac12,3", "3,0.5"),
        ("(1,2),(3,4)", "(3,4),(1,2)"), ("(1,2),(3,4)", r"(1,2)\text{ and }(3,4)"), ("2;3", "2,3"), ("x=1,y=2", "y=2,x=1"),
        ("-1,0,1", r"0,\pm1"), ("3, 5, 7", r"3,5 \text{ and } 7"), ("1,2,3", r"\{1,2,3\}"), ("x = 1, x = -2", "1, -2"),
    ],
    "tuple": [
        ("(1,2)", "(1,2)"), ("(1,2)", r"\left(1,2\right)"), ("(1,2)", "x=1,y=2"), ("(1,2)", "(x,y)=(1,2)"), ("(1,2)", "1,2"),
        ("(1,-2,3)", "( 1 , -2 , 3 )"), (r"(\frac12,3)", "(0.5,3)"), ("(a,b)=(1,2)", "(1,2)"), ("(1,2,3)", r"\langle 1,2,3\rangle"),
        (r"(2,\frac{\pi}{3})", r"(2,\pi/3)"), ("(x,y,z)=(1,2,3)", "x=1, y=2, z=3"), ("(-1, 4)", r"\text{(-1, 4)}"),
    ],
    "matrix": [
        (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\begin{bmatrix}1&0\\0&1\end{bmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
        (r"\begin{pmatrix}2&4\\6&8\end{pmatrix}", r"2\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{pmatrix}1/2\\1\end{pmatrix}", r"\begin{pmatrix}\frac12\\1\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{array}{cc}1&2\end{array}"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \\ \end{pmatrix}", r"\begin{bmatrix}1 & 2\\ 3 & 4\end{bmatrix}"),
        (r"\begin{pmatrix} 4 \\ -5 \\ 1 \end{pmatrix}", r"\left(\begin{array}{c} 4 \\ -5 \\ 1 \end{array}\right)"),
    ],
    "polynomial": [
        ("x^2-1", "(x-1)(x+1)"), ("3x+2", "2+3x"), ("(x+1)^3", "x^3+3x^2+3x+1"), ("ab", "ba"), ("x^2y", "yx^2"), ("2(x+1)", "2x+2"),
        (r"\frac{x+1}{2}", "0.5x+0.5"), ("n(n+1)/2", r"\frac{n^2+n}{2}"), ("a_1+a_2", "a_2+a_1"), ("x^2-4x+4", "(x-2)^{2}"),
        ("-x^2+1", "1-x^2"), ("(x-2)(x^2+2x+4)", "x^3-8"), ("n!", "n(n-1)!"), ("4x^3 - 6x^2", "2x^2(2x-3)"), ("|x|", r"\sqrt{x^2}"),
        ("x_1x_2", "x_2x_1"),
    ],
    "equation": [
        ("x=3", "3"), ("3", "x=3"), ("y=3x-2", "3x-y-2=0"), ("y=3x-2", "y=-2+3x"), ("x^2+y^2=9", "x^2+y^2-9=0"), ("2x+4y=6", "x+2y=3"),
        ("12", "4+8=12"), ("x+y=5", "y=5-x"), ("y=x^2", "x^2=y"), (r"\frac{x^2}{4}+\frac{y^2}{9}=1", "9x^2+4y^2=36"), ("n=10", "n = 10"),
        ("a=1, b=2", "b=2, a=1"), ("7", "x = 3 + 4 = 7"), (r"\angle ABC=40^\circ", "40"), ("A=12", "12"),
        ("(x-1)^2+(y+2)^2=4", "x^2-2x+y^2+4y+1=0"),
    ],
    "function": [
        ("f(x)=x+1", "f(x)=1+x"), ("f(x)=x+1", "x+1"), ("g(t)=t^2", "t^2"), ("x^2", "f(x)=x^2"), ("f(x)=2x", "y=2x"),
        ("f(n)=n+1", "f(k)=k+1"), ("f(x)=0,f(x)=x", r"f(x)=x\text{ or }f(x)=0"), ("a_n=2n-1", "2n-1"), ("f(x) = c", "f(x)=c"),
        (r"f^{-1}(x)=\frac{x-1}{2}", r"\frac{x-1}{2}"), ("P(x)=x^3", "x^3"),
    ],
    "plus_minus": [
        (r"\pm5", "5,-5"), (r"2\pm\sqrt3", r"2+\sqrt3, 2-\sqrt3"), (r"x=\pm2", "-2,2"),
        (r"\frac{1\pm\sqrt5}{2}", r"\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2}"), (r"\pm i", "i,-i"), (r"\pm 4", r"x = 4 \text{ or } x = -4"),
        (r"\pm\frac{1}{2}", "±0.5"), (r"-1\pm 2", "1,-3"),
    ],
    "base": [
        ("101_2", "101_2"), ("101_2", "101_{2}"), ("3A_{16}", "3A_{16}"), ("101_2", "(101)_2"), ("101_2", "101"),
        ("221_3", r"221_{\text{three}}"), ("221_3", r"221 \text{ base } 3"), ("-37_8", "-37_8"),
    ],
    "degree": [
        (r"45^\circ", "45"), ("45", "45°"), (r"45^\circ", r"45^{\circ}"), (r"45^\circ", r"45\text{ degrees}"),
        (r"45^\circ", r"\frac{\pi}{4}"), (r"30^\circ,60^\circ", r"60^\circ,30^\circ"), (r"22.5^\circ", r"22\frac12^\circ"),
        ("35^\\circ 30'", r"35.5^\circ"), (r"70^\circ\text{F}", "70"), ("120", "120 degrees"), (r"\angle A = 30^\circ", r"30^\circ"),
    ],
    "ratio_time": [
        ("3:4", "3:4"), ("3:4", "6:8"), ("3:4", r"\frac34"), ("2:3:4", "4:6:8"), (r"5:15\text{ p.m.}", r"5:15\text{ PM}"),
        (r"5:15\text{ p.m.}", "17:15"), ("10:00", "10:00"), (r"1:\sqrt2", r"\sqrt2:2"), ("a:b", "2a:2b"),
        (r"9:05\text{ AM}", "9:05 a.m."), ("AB:BC=2:3", "2:3"), ("3:4", "3 : 4"),
    ],
    "text": [
        (r"\text{blue}", "blue"), (r"\text{blue}", r"\text{Blue}"), (r"\text{a circle}", r"\text{circle}"), (r"\text{yes}", "Yes"),
        ("even", r"\text{even}"), (r"\text{Monday}", r"\mathrm{Monday}"), (r"\text{Alice, Bob}", r"\text{Bob, Alice}"),
        ("7", r"7^{\text{th}}"), ("seven", "7"), ("21", "21st"), ("True", r"\text{True}"), (r"\text{two lines}", r"\text{two lines}"),
        (r"\text{odd}", "odd"), (r"\text{a parabola}", r"\text{parabola}."),
    ],
    "choice": [
        ("B", "(B)"), ("B", r"\text{(B)}"), ("B", r"\textbf{(B) }14"), ("B", "B."), ("B", "B) 14"), ("B", r"\boxed{B}"),
        ("14", r"\textbf{(B) }14"), ("A,B", "B, A"), ("D", r"\mathrm{D}"), ("D", "d"), ("B", r"\text{Option B}"), ("(B)", "B"),
        ("B", r"\textbf{B}"), ("A, C", "A and C"),
    ],
    "unicode": [
        ("-7", "−7"), (r"\sqrt{5}", "√5"), (r"3\sqrt{5}", "3√5"), ("x^3", "x³"), (r"\frac34", "¾"), (r"2\frac12", "2½"), (r"2\pi", "2π"),
        ("12", "3×4"), ("3", "6÷2"), (r"x\ge2", "x≥2"), (r"\alpha", "α"), ("15", "１５"), (r"\sqrt{x+1}", "√(x+1)"), (r"90^\circ", "90º"),
        ("[1,2]", "[1，2]"), ("x_1", "x₁"), (r"\pm 3", "±3"), ("6", "2·3"), ("10^{-2}", "10⁻²"),
    ],
    "precision": [
        ("2^{64}", "18446744073709551616"), ("50!", "50!"), ("12!", "479001600"), (r"\binom{100}{50}", r"\frac{100!}{50!50!}"),
    ],
    "malformed": [
        (r"\frac{2}{5}", r"\frac 2 5"), (r"\frac{2}{5}", r"\frac{2}{5"), ("9", r"\textcolor{red}{9}"), ("9", r"{\color{red}9}"),
        ("9", "**9**"), ("9", "`9`"), ("9", "$$9$$"), ("9", r"\[9\]"), ("9", r"9\ "), ("9", r"\displaystyle{9}"),
        ("9", r"\text{The answer is 9}"), ("9", r"\text{Answer: } 9"), ("9", r"9\quad"), ("9", r"\text{ }9"),
        (r"\frac{2}{5}", r"\\frac{2}{5}"), ("9", r"\bf 9"), ("9", r"9\tag{1}"), (r"\sqrt{7}", r"\sqrt 7\approx 2.65"), ("9", "9;"),
        ("9", r"\mathrm{9}"), ("9", r"x \approx 9"), ("9", "= 9"), ("9", r"\boxed{9}"),
    ],
    "injection": [
        ("8", "8+0x"),
    ],
    "mixed": [
        ("5", r"5\ \mathrm{m/s}"), (r"5\ \mathrm{m/s}", "5"), (r"12 \mathrm{~cm}^{2}", "12"),
        (r"20 \mathrm{~km} / \mathrm{h}", r"20\text{ km/h}"), (r"\{2,3\}", r"\{1,2,3\}\cap\{2,3,4\}"), ("x^{2}+1", "x^2 + 1."),
        ("-1/3", r"-\frac{1}{3}"), ("A^T", "A^T"), (r"\frac{1}{x-1}", "(x-1)^{-1}"), (r"\frac{\ln 2}{\ln 3}", r"\log_3 2"),
        ("2^{n+1}-2", "2(2^n-1)"), ("(-1)^n n", r"n\cos(n\pi)"), (r"(-\infty,-1]\cup[1,\infty)", r"|x|\ge1"), ("0<a<1", r"a\in(0,1)"),
        (r"a \in (0, 1)", "0<a<1"), ("k>3", "(3,+∞)"), ("x=2y", "y=x/2"), ("3:2", r"\frac{3}{2}"), (r"\triangle ABC", r"\triangle ABC"),
        ("6!", "720"), ("2x", "2 x"), (r"\sqrt[3]{2}", "2^{1/3}"), (r"5\text{ or }7", "7, 5"), ("n=4k+1", "4k+1"),
        (r"\text{June } 5", r"\text{June 5}"), ("5050", "5,050"), (r"1 \text{ hour } 30 \text{ minutes}", r"90 \text{ minutes}"),
        (r"x\equiv 3 \pmod 7", r"x\equiv 3\pmod{7}"), (r"P=\frac12", "0.5"), (r"\vec{a}", r"\vec{a}"),
        (r"2\vec{i}+3\vec{j}", r"3\vec{j}+2\vec{i}"), (r"y=\frac{1}{2}x+3", "x-2y+6=0"), ("(x-3)^2+y^2=9", "x^2+y^2-6x=0"),
        (r"\frac{x^2}{16}-\frac{y^2}{9}=1", "9x^2-16y^2=144"), ("C", "C. 12"), ("II", "II"), (r"\text{true}", r"\text{True}"),
        ("+5", "5"), (r"\left(\frac{1}{2}, \infty\right)", r"x > \frac12"), ("x<-2 or x>3", "(-∞,-2)∪(3,∞)"),
        (r"[1,2)\cup(2,3]", r"1\le x\le3, x\ne2"), ("{1,2}", "1,2"), ("10^{-3}", "0.001"), (r"1.0\times 10^{-3}", "0.001"),
        (r"\frac{3}{4}", r"75\%"), (r"\frac{2}{\sqrt{3}}", r"\frac{2\sqrt{3}}{3}"), ("7", r"7\text{ (approximately)}"),
        ("7", r"7 \text{ units}^2"), ("144", "12^2"), ("a^2-b^2", "(a+b)(a-b)"), (r"\text{Alice and Bob}", r"\text{Bob and Alice}"),
        (r"2 \frac{1}{2} \text{ hours}", "2.5"), (r"100^\circ \text{C}", "100"), ("30", r"30^{\circ}"),
        (r"f(x)=\begin{cases}x&x>0\\-x&x\le0\end{cases}", r"f(x)=\begin{cases}x&x>0\\-x&x\le0\end{cases}"), ("x^2 + C", "C + x^2"),
        (r"2\sqrt{2}+\sqrt{6}", r"\sqrt{6}+2\sqrt{2}"), (r"\frac{-1 \pm \sqrt{5}}{2}", r"\frac{\sqrt5-1}{2},\frac{-\sqrt5-1}{2}"),
        (r"\log_{10} 5", r"\log 5"), (r"\log_{10} 5", r"1-\log 2"), (r"1 - \frac{1}{2^{10}}", r"\frac{1023}{1024}"), (r"12\%", "0.12"),
        ("(3,4)", r"\begin{pmatrix}3\\4\end{pmatrix}"), (r"\text{No solution}", r"\emptyset"), ("0", r"\text{zero}"),
    ],
}  # fmt: skip
DIFFERENT: dict[str, list[tuple[str, str]]] = {
    "integer": [
        ("21", "12"), ("100", "1 00"), ("1", "1.0000001"),
    ],
    "decimal": [
        ("0.25", "0.26"), ("0.3333", r"\frac13"), ("0.5", "05"), ("1.41", r"\sqrt{2}"),
    ],
    "fraction": [
        (r"\frac{2}{3}", "0.667"), (r"\frac{a}{b}", r"\frac{b}{a}"),
    ],
    "mixed_number": [
        (r"5\frac{2}{3}", r"\frac{10}{3}"), (r"-1\frac12", "-0.5"), (r"\frac{9}{4}", "2-1/4"),
    ],
    "percent": [
        (r"15\%", r"1.5\%"), (r"15\%", r"51\%"), (r"-5\%", r"5\%"),
    ],
    "units": [
        (r"12\text{ cm}", r"12\text{ mm}"), (r"30\text{ m/s}", r"30\text{ km/h}"), (r"24\text{ cm}^3", r"24\text{ cm}^2"),
        (r"8\text{ dogs}", r"8\text{ cats}"), (r"5\text{ kg}", r"5\text{ lb}"),
    ],
    "currency": [
        (r"\$3.50", r"\$3.05"), (r"\$5", "€5"),
    ],
    "thousands": [
        ("1234", "1,243"), ("12345", "345"), ("1,2,3", "123"),
    ],
    "scientific": [
        (r"2\times10^{6}", r"2\times10^{5}"), (r"7\times 10^{-400}", "0"),
    ],
    "radical": [
        (r"\sqrt{18}", r"2\sqrt3"), (r"\sqrt{3}", "1.732"), (r"\frac{3+\sqrt{13}}{2}", r"\frac{3-\sqrt{13}}{2}"),
    ],
    "pi": [
        (r"3\pi", "9.42"), (r"12\pi", "12"), (r"\pi-3", r"3-\pi"), (r"\pi", "3.14159"),
    ],
    "exponent_log": [
        (r"\ln 9", r"3\ln 2"), (r"\log_2 3", r"\log_3 2"), ("2^{100}", "2^{101}"), ("7^{2023}", "7^{2022}"),
    ],
    "trig": [
        (r"\cos 2x", r"2\cos x"), (r"\sin\theta", r"\cos\theta"), (r"\cos 20^\circ", r"\sin 20^\circ"),
    ],
    "complex": [
        ("2-3i", "2+3i"), ("5i", "5"),
    ],
    "infinity": [
        (r"-\infty", r"\infty"), (r"\infty", "1000000"), ("0", r"\infty"),
    ],
    "interval": [
        ("(2,5]", "(2,5)"), (r"(3,\infty)", r"[3,\infty)"), ("[0,1]", "0,1"), (r"(0,1)\cup(1,2)", "(0,2)"),
    ],
    "inequality": [
        ("x>3", "x>=3"), ("x<2", "x<3"), ("a+b>c", "a+b<c"), ("x>3", "y>3"), ("n>5", "n≥5"),
    ],
    "set": [
        (r"\{1,2\}", r"\{1,3\}"), (r"\{2,4,6\}", r"\{2,4\}"),
    ],
    "list": [
        ("2,3", "2"), ("2,3", "2, 3, 4"), ("(1,2),(3,4)", "(1,2),(4,3)"), ("1,1,2", "1,2"), ("x=1,y=2", "x=2,y=1"),
    ],
    "tuple": [
        ("(1,2)", "(2,1)"), ("(1,2)", "2,1"), ("(1,2,3)", "(1,2)"), ("(1,2)", "[1,2]"), ("(1,2)", "(1,3)"),
    ],
    "matrix": [
        (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\begin{bmatrix}1&0\\0&2\end{bmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
        (r"\begin{pmatrix}a\\b\end{pmatrix}", r"\begin{pmatrix}b\\a\end{pmatrix}"),
    ],
    "polynomial": [
        ("x^2-1", "x^2+1"), ("x", "y"), (r"\frac{1}{x+1}", r"\frac{1}{x}+1"), ("x", r"\sqrt{x^2}"), ("a^2+b^2", "(a+b)^2"),
    ],
    "equation": [
        ("x=3", "x=4"), ("y=3x-2", "y=3x+2"), ("x=3", "y=3"), ("x-y=1", "0"),
    ],
    "function": [
        ("f(x)=x+1", "f(x)=x-1"), ("f(x)=0,f(x)=x", "f(x)=0"), ("f(x)=-x", "f(x) = x"),
    ],
    "plus_minus": [
        (r"\pm5", "5"), ("5", r"\pm 5"), (r"2\pm\sqrt3", r"\sqrt3\pm2"),
    ],
    "base": [
        ("101_2", "101_3"), ("101_2", "110_2"), ("3A_{16}", "3B_{16}"), ("101_2", "5"), ("1212_3", "12123"),
    ],
    "degree": [
        (r"45^\circ", r"54^\circ"), (r"\frac{\pi}{4}", "45"), (r"70^\circ\text{F}", r"70^\circ\text{C}"),
    ],
    "ratio_time": [
        ("3:4", "4:3"), ("2:3:4", "2:3"), (r"5:15\text{ p.m.}", r"5:15\text{ a.m.}"), ("10:00", "11:00"),
        (r"5:15 \text{ p.m.}", r"5:51 \text{ p.m.}"),
    ],
    "text": [
        (r"\text{blue}", r"\text{red}"), (r"\text{no}", r"\text{not}"), (r"\text{rational}", r"\text{irrational}"),
        ("even", r"\text{not even}"), (r"\text{positive}", r"\text{nonpositive}"), ("true", "false"), (r"\text{odd}", r"\text{even}"),
    ],
    "choice": [
        ("B", "C"), ("B", "A, B"), ("A,B", "A"),
    ],
    "unicode": [
        (r"x\ge2", "x≤2"), ("0", "O"),
    ],
    "precision": [
        ("10^{30}", "10^{30}+1"), ("2^{64}", "18446744073709551615"), ("0.1", "0.1000000000000000000001"),
        (r"\frac13", "0.3333333333333333"), ("50!", "51!"), (r"\frac{1}{10^{20}}", "0"), (r"\sqrt2", "1.41421356237309504880"),
        ("999999999999", "1000000000000"), (r"10^{50}+\sqrt{2}", r"10^{50}+\sqrt{3}"), (r"e^{\pi\sqrt{163}}", "262537412640768744"),
    ],
    "malformed": [
        (r"\sqrt{7}", "2.65"),
    ],
    "hedging": [
        ("3", r"3\text{ or }4"), ("3", "3,4"), ("3", "x"), ("3", "[2,4]"), ("3", "(3,4)"), ("3", "x>2"), ("3", "?"),
        ("3", r"\text{unknown}"), ("3", r"\text{cannot be determined}"), ("3", r"\frac{3}{0}"), ("0", r"\emptyset"),
        ("1", r"\text{true}"), ("3", r"3\neq4"), ("3", r"\mathbb{R}"), ("3", r"n=3 \text{ or } n=4"),
        ("3", r"\text{about }3\text{ or }4"), ("3", "3 or 3.5"), ("4", "between 3 and 5"),
    ],
    "injection": [
        ("8", "8 if True else 9"), ("8", "__import__('os')"), ("8", "8; drop table"), ("8", r"\def\a{8}\a"), ("8", "lambda: 8"),
        ("8", "8y"), ("8", "8==8"), ("8", r"\text{8 is what the grader wants, or 9}"), ("8", "8|7"), ("8", "{{8}} or {{9}}"),
        ("8", "8 8"), ("8", "888"), ("8", r"\operatorname{gold}"), ("8", r"8 \land 9"), ("8", "${8}$ or ${9}$"),
    ],
    "mixed": [
        (r"12 \mathrm{~cm}^{2}", r"12 \mathrm{~cm}^{3}"), (r"\frac{x}{y}=2", "x=2y"), (r"\angle B", r"\angle C"),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k"), ("e", "2.71828"), ("90", r"1 \text{ hour } 30 \text{ minutes}"),
        (r"3 \pmod 7", r"4 \pmod 7"), ("y^2=4x", "y^2 = 8x"), (r"\text{II}", r"\text{III}"), ("①③", "③①"), ("1:2:3", "1:2:4"),
        ("75", "0.75"), ("3x^2", "3x^3"), (r"\sqrt{x^2+1}", "x+1"), ("i", "j"),
        (r"f(x)=\begin{cases}x&x>0\\-x&x\le0\end{cases}", r"f(x)=\begin{cases}x&x>0\\x&x\le0\end{cases}"), ("4", "3.9999999999999"),
        (r"\text{none}", "0"), ("1/0", "1/0"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(SAME))
def test_answers_that_say_the_same_are_equal(kind: str) -> None:
    assert [pair for pair in SAME[kind] if not same_text(*pair)] == []


@pytest.mark.parametrize("kind", sorted(DIFFERENT))
def test_answers_that_say_something_else_are_not(kind: str) -> None:
    assert [pair for pair in DIFFERENT[kind] if same_text(*pair)] == []
