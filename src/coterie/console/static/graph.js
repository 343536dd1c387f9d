import{b as a,c as b,d as c}from"./chunk-5.js";import"./chunk-2.js";export{c as clip,a as default,b as linesOf};
